"""ShapeNet-Part: every layout gives the same shapes."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fgnn.data.scenes import make_shapes
from fgnn.data.shapenet import CATEGORIES, FIRST_PART, NUM_PARTS, PARTS, SYNSETS, Shapes, load_shapenet_part
from fgnn.errors import InputError


def test_the_fifty_parts() -> None:
    assert NUM_PARTS == 50
    assert [p for parts in PARTS for p in parts] == list(range(50))
    assert PARTS[CATEGORIES.index("Motorbike")] == (30, 31, 32, 33, 34, 35)


def write_lists(folder: Path, names: list[str]) -> None:
    (folder / "train_test_split").mkdir()
    for split in ("train", "val", "test"):
        entries = [f"shape_data/{name}" for name in names]
        (folder / "train_test_split" / f"shuffled_{split}_file_list.json").write_text(json.dumps(entries))


def as_normal_text(shapes: Shapes, folder: Path) -> None:
    write_lists(folder, shapes.name.tolist())
    for s, name in enumerate(shapes.name.tolist()):
        xyz, label, _ = shapes[s]
        (folder / name).parent.mkdir(exist_ok=True)
        rows = np.concatenate([xyz, np.zeros_like(xyz), label[:, None]], axis=1)
        np.savetxt(folder / f"{name}.txt", rows, fmt="%.6f")


def as_part_annotation(shapes: Shapes, folder: Path) -> None:
    write_lists(folder, shapes.name.tolist())
    for s, name in enumerate(shapes.name.tolist()):
        xyz, label, category = shapes[s]
        synset, model = name.split("/")
        base = folder / "PartAnnotation" / synset
        (base / "points").mkdir(parents=True, exist_ok=True)
        (base / "expert_verified" / "points_label").mkdir(parents=True, exist_ok=True)
        np.savetxt(base / "points" / f"{model}.pts", xyz, fmt="%.6f")
        local = label.astype(int) - FIRST_PART[category] + 1
        np.savetxt(base / "expert_verified" / "points_label" / f"{model}.seg", local, fmt="%d")


def as_hdf5(shapes: Shapes, folder: Path) -> None:
    (folder / "hdf5_data").mkdir()
    for split in ("train0", "val0", "test0"):
        with h5py.File(folder / "hdf5_data" / f"ply_data_{split}.h5", "w") as file:
            file["data"] = shapes.xyz.reshape(len(shapes), -1, 3)
            file["pid"] = shapes.label.reshape(len(shapes), -1)
            file["label"] = shapes.category[:, None]


@pytest.mark.parametrize("write", [as_normal_text, as_part_annotation, as_hdf5])
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_layout_gives_the_same_shapes(tmp_path: Path, write: Callable[[Any, Path], object], split: str) -> None:
    shapes = make_shapes(6, points=128, seed=1)
    write(shapes, tmp_path)
    loaded = load_shapenet_part(tmp_path, split)
    np.testing.assert_allclose(loaded.xyz, shapes.xyz, atol=1e-6)
    np.testing.assert_array_equal(loaded.label, shapes.label)
    np.testing.assert_array_equal(loaded.category, shapes.category)
    np.testing.assert_array_equal(loaded.offsets, shapes.offsets)


def test_shapes_of_another_split_can_be_dropped() -> None:
    shapes = make_shapes(5, points=32)
    assert len(shapes.without(shapes.select(np.array([1, 3])))) == 3


def test_normalised_shapes_fill_the_unit_sphere() -> None:
    shapes = make_shapes(4, points=256, seed=2)
    for s in range(4):
        xyz, _, _ = shapes[s]
        np.testing.assert_allclose(xyz.mean(0), 0, atol=1e-5)
        assert np.sqrt((xyz**2).sum(1)).max() == pytest.approx(1, abs=1e-5)


def test_invalid_folders_give_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="known layout"):
        load_shapenet_part(tmp_path, "train")
    with pytest.raises(ValueError, match="Expected a split among train, val, test"):
        load_shapenet_part(tmp_path, "trian")
    as_normal_text(make_shapes(1, points=8), tmp_path)
    next(tmp_path.glob("0*/*.txt")).write_text("1 2 3\n")
    with pytest.raises(InputError, match="Expected 7 columns"):
        load_shapenet_part(tmp_path, "test")


def test_a_truncated_packed_file_gives_one_line(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "train_0.npz", planes=np.zeros((2, 3, 4, 8), np.uint8))
    with pytest.raises(InputError, match="packed ShapeNet-Part"):
        load_shapenet_part(tmp_path, "train")
    (tmp_path / "val.npz").write_bytes((tmp_path / "train_0.npz").read_bytes()[:50])
    with pytest.raises(InputError, match=r"val\.npz"):
        load_shapenet_part(tmp_path, "val")


@pytest.mark.data
def test_the_packed_files_have_the_official_sizes(data_dir: Path) -> None:
    test = load_shapenet_part(data_dir / "shapenet_part", "test")
    assert len(test) == 2874
    val = load_shapenet_part(data_dir / "shapenet_part", "val")
    assert len(val) == 1870
    assert len(test) - len(test.without(val)) == 3
    assert [int((test.category == c).sum()) for c in (0, 4, 15)] == [341, 704, 848]
    for shapes in (val, test):
        low = np.array([p[0] for p in PARTS])[shapes.category].repeat(2048)
        high = np.array([p[-1] for p in PARTS])[shapes.category].repeat(2048)
        assert ((shapes.label >= low) & (shapes.label <= high)).all()


@pytest.mark.data
@pytest.mark.slow
def test_raw_text_gives_the_labels_of_the_packed_arrays(data_dir: Path, tmp_path: Path) -> None:
    with tarfile.open(data_dir / "shapenet_part" / "raw_txt_sample_64shapes.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(tmp_path.glob("shapenetcore*"))
    names = [f"{p.parent.name}/{p.stem}" for p in sorted(folder.glob("0*/*.txt"))]
    assert len(names) == 64
    checked = 0
    for split in ("train", "val", "test"):
        raw = load_shapenet_part(folder, split).normalised()
        packed = load_shapenet_part(data_dir / "shapenet_part", split)
        place = {name: s for s, name in enumerate(packed.name.tolist())}
        for r, name in enumerate(raw.name.tolist()):
            if name not in place:
                continue
            checked += 1
            xyz, label, category = raw[r]
            points, labels, kind = packed[place[name]]
            assert kind == category
            # each packed point is one of the raw points, up to its quantisation, and carries that point's label
            distance = ((points[:, None].astype(np.float64) - xyz[None]) ** 2).sum(2)
            near = distance.argmin(1)
            agree = labels == label[near]
            assert np.sqrt(distance.min(1)).max() < 2e-2
            assert agree.mean() > 0.999
    assert checked == 64
    assert all(name.split("/")[0] in SYNSETS for name in names)
