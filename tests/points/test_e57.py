"""E57 files written by libE57Format (through pye57), intact and damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgnn.errors import InputError
from fgnn.points.cloud import open_cloud, read_cloud, write_cloud

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("size", [1 << 19, 7])
def test_scans_are_transformed_by_their_poses(size: int) -> None:
    parts = list(open_cloud(DATA / "two_scans.e57").chunks(size))
    xyz = np.concatenate([p.xyz for p in parts])
    i = np.arange(40.0)
    local = np.column_stack([i * 0.25, 10 - i * 0.5, np.sin(i)])
    rotated = local[:, [2, 0, 1]]  # the quaternion (1, 1, 1, 1) / 2 rotates x to y, y to z and z to x
    expected = np.concatenate([rotated + np.array([x, 50.5, -3]) for x in (0, 100)])
    np.testing.assert_allclose(xyz, expected, atol=1e-12)
    fields = {name: np.concatenate([p.fields[name] for p in parts]) for name in parts[0].fields}
    assert list(fields) == ["intensity", "red", "green", "blue", "scan"]
    np.testing.assert_allclose(fields["intensity"], np.tile(i / 40, 2), atol=1e-6)
    np.testing.assert_array_equal(fields["green"], np.tile((2 * i) % 256, 2))
    np.testing.assert_array_equal(fields["scan"], np.repeat([0, 1], 40))
    assert read_cloud(DATA / "two_scans.e57").rgb is not None


@pytest.mark.parametrize("size", [1 << 19, 64, 1])
def test_integers_of_any_width_are_unpacked(size: int) -> None:
    parts = list(open_cloud(DATA / "packed.e57").chunks(size))
    xyz = np.concatenate([p.xyz for p in parts])
    j = np.arange(700)
    expected = np.column_stack([j * 0.013 - 4, j * 0.1, j * 0.5 - 9])
    valid = j % 10 != 3
    np.testing.assert_allclose(xyz[valid], expected[valid], atol=1e-9)
    assert np.isnan(xyz[~valid]).all()
    rows = np.concatenate([p.fields["rowIndex"] for p in parts])
    np.testing.assert_array_equal(rows, (j * 37) % 5001)
    assert (np.concatenate([p.fields["columnIndex"] for p in parts]) == 7).all()


def test_writing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.laz or \.ply"):
        write_cloud(read_cloud(DATA / "two_scans.e57"), tmp_path / "a.e57")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.95])
def test_a_truncated_file_gives_one_line(tmp_path: Path, share: float) -> None:
    data = (DATA / "packed.e57").read_bytes()
    (tmp_path / "a.e57").write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError) as error:
        read_cloud(tmp_path / "a.e57")
    assert "\n" not in str(error.value)


def test_false_sizes_are_rejected(tmp_path: Path) -> None:
    data = (DATA / "packed.e57").read_bytes()
    for old, new in ((b'recordCount="700"', b'recordCount="9e9"'), (b'recordCount="700"', b'recordCount="999"')):
        (tmp_path / "a.e57").write_bytes(data.replace(old, new))
        assert old in data
        with pytest.raises(InputError):
            read_cloud(tmp_path / "a.e57")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_bytes_are_rejected_or_harmless(changes: list[tuple[int, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.e57"
        shutil.copy(DATA / "two_scans.e57", path)
        data = bytearray(path.read_bytes())
        for place, value in changes:
            data[place % len(data)] = value
        path.write_bytes(bytes(data))
        message, points = "", 0
        try:
            points = len(read_cloud(path))
        except InputError as error:
            message = str(error)
        assert points <= 8 * len(data)
        assert "\n" not in message
