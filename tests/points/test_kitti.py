"""KITTI's frames: bytes as its own tools read them, and labels beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, open_cloud, read_cloud, write_cloud


def frame(path: Path, count: int = 100) -> np.ndarray:
    """A frame as the data set's tools write it."""
    values = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    values.tofile(path)
    return values


def test_a_frame_comes_back_byte_for_byte(tmp_path: Path) -> None:
    values = frame(tmp_path / "000000.bin")
    cloud = read_cloud(tmp_path / "000000.bin")
    assert np.array_equal(cloud.xyz, values[:, :3])
    assert np.array_equal(cloud.fields["intensity"], values[:, 3])
    write_cloud(cloud, tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == (tmp_path / "000000.bin").read_bytes()
    assert not (tmp_path / "out.label").exists()


@pytest.mark.parametrize("place", ["velodyne/000007.label", "labels/000007.label"])
def test_labels_lie_beside_the_frame_or_in_their_folder(tmp_path: Path, place: str) -> None:
    frame(tmp_path / "velodyne" / "000007.bin")
    label, instance = np.arange(100) % 20, np.arange(100) * 7
    (tmp_path / "labels").mkdir()
    (label | instance << 16).astype(np.uint32).tofile(tmp_path / place)
    parts = list(open_cloud(tmp_path / "velodyne" / "000007.bin").chunks(33))
    assert [len(part) for part in parts] == [33, 33, 33, 1]
    assert np.array_equal(np.concatenate([part.fields["label"] for part in parts]), label)
    assert np.array_equal(np.concatenate([part.fields["instance"] for part in parts]), instance)


def test_labels_are_written_as_semantic_kitti_reads_them(tmp_path: Path) -> None:
    frame(tmp_path / "a.bin")
    cloud = read_cloud(tmp_path / "a.bin")
    label = (np.arange(100) % 9).astype(np.uint8)
    write_cloud(cloud.with_fields(label=label, confidence=np.ones(100, np.float32)), tmp_path / "b.bin")
    assert np.array_equal(np.fromfile(tmp_path / "b.label", np.uint32), label)
    assert np.array_equal(read_cloud(tmp_path / "b.bin").fields["label"], label)


def test_a_cloud_without_intensity_becomes_a_frame(tmp_path: Path) -> None:
    write_cloud(Cloud(np.arange(12.0).reshape(4, 3)), tmp_path / "a.bin")
    values = np.fromfile(tmp_path / "a.bin", np.float32).reshape(-1, 4)
    assert np.array_equal(values[:, :3], np.arange(12.0).reshape(4, 3))
    assert not values[:, 3].any()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(33))
    with pytest.raises(InputError, match=r"a\.bin.*33 bytes"):
        read_cloud(tmp_path / "a.bin")
    frame(tmp_path / "b.bin")
    (tmp_path / "b.label").write_bytes(bytes(8))
    with pytest.raises(InputError, match=r"b\.label.*100 labels"):
        read_cloud(tmp_path / "b.bin")
    with pytest.raises(InputError, match="'red'"):
        write_cloud(Cloud(np.zeros((1, 3)), {"red": np.zeros(1, np.uint8)}), tmp_path / "c.bin")
    with pytest.raises(InputError, match=r"'label'.*do not fit"):
        write_cloud(Cloud(np.zeros((1, 3)), {"label": np.full(1, -1)}), tmp_path / "c.bin")
    assert not (tmp_path / "c.bin").exists()
