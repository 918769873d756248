"""HDF5 files are read exactly; arrays that are too large or lie in other files are rejected in one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn.data.hdf5 import Hdf5Reader
from fgnn.data.s3dis import load_blocks
from fgnn.data.shapenet import load_shapenet_part
from fgnn.errors import InputError
from tests.fuzz.large import HOSTILE_HDF5
from tests.fuzz.seeds import hdf5

h5py = pytest.importorskip("h5py")
WANTED = {"data": ("iuf", "S P 9"), "label": ("iu", "S P")}


@pytest.fixture(scope="module")
def reader() -> Iterator[Hdf5Reader]:
    with Hdf5Reader() as opened:
        yield opened


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("kind", ["<f4", ">f8", "<f2", "<i8", ">u2"])
@pytest.mark.parametrize(
    "options",
    [{}, {"chunks": (3, 5, 2)}, {"chunks": (7, 11, 9), "compression": "gzip"}, {"shuffle": True, "compression": 9}],
    ids=str,
)
def test_every_layout_is_read_exactly(
    reader: Hdf5Reader, tmp_path: Path, libver: str, kind: str, options: dict[str, Any]
) -> None:
    values = (np.random.default_rng(0).random((7, 11, 9)) * 1000).astype(kind)
    label = np.arange(77).reshape(7, 11, 1, 1)
    (tmp_path / "a.h5").write_bytes(hdf5({"data": values, "label": label}, libver, **options))
    arrays = reader.read(tmp_path / "a.h5", WANTED)
    np.testing.assert_array_equal(arrays["data"], values)
    np.testing.assert_array_equal(arrays["label"], label[..., 0, 0])


def test_a_small_array_inside_the_index_is_read(reader: Hdf5Reader, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((1, 2))
        h5py.h5d.create(file.id, b"label", h5py.h5t.STD_U8LE, space, layout).write(space, space, np.ones((1, 2), "u1"))
        file["data"] = np.zeros((1, 2, 9))
    assert reader.read(tmp_path / "a.h5", WANTED)["label"].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": np.zeros((2, 3, 8)), "label": np.zeros((2, 3), "u1")}, r"'data' of shape \(S P 9\).*got float64"),
        ({"data": np.zeros((2, 3, 9)), "label": np.zeros((2, 4), "u1")}, "with S = 2, P = 3"),
        ({"data": np.zeros((2, 3, 9)), "label": np.zeros((2, 3))}, "'label' of shape"),
        ({"data": np.zeros((0, 3, 9)), "label": np.zeros((0, 3), "u1")}, "Expected the values of 'data'"),
        ({"data": np.zeros((2, 3, 9))}, "Expected an array 'label' in the file itself"),
        ({"data": np.array([b"text"]), "label": np.zeros((2, 3), "u1")}, "Expected plain numbers in 'data'"),
    ],
    ids=["columns", "lengths", "kind", "empty", "missing", "text"],
)
def test_arrays_that_do_not_fit_are_rejected(reader: Hdf5Reader, tmp_path: Path, arrays: Any, message: str) -> None:
    (tmp_path / "a.h5").write_bytes(hdf5(arrays))
    with pytest.raises(InputError, match=f"a.h5: .*{message}"):
        reader.read(tmp_path / "a.h5", WANTED)


def _soft(file: Any, place: Path) -> None:
    file["other"] = np.zeros((1, 1, 9))
    file["data"] = h5py.SoftLink("/other")


def _link(file: Any, place: Path) -> None:
    with h5py.File(place / "secret.h5", "w") as secret:
        secret["data"] = np.ones((1, 1, 9))
    file["data"] = h5py.ExternalLink(place / "secret.h5", "data")


def _external(file: Any, place: Path) -> None:
    (place / "secret").write_bytes(bytes(36))
    file.create_dataset("data", (1, 1, 9), "f4", external=[(place / "secret", 0, 36)])


def _virtual(file: Any, place: Path) -> None:
    _link(file, place)
    del file["data"]
    layout = h5py.VirtualLayout((1, 1, 9), "f8")
    layout[:] = h5py.VirtualSource(place / "secret.h5", "data", (1, 1, 9))
    file.create_virtual_dataset("data", layout)


@pytest.mark.parametrize("make", [_soft, _link, _external, _virtual])
def test_other_files_are_not_opened(reader: Hdf5Reader, tmp_path: Path, make: Callable[[Any, Path], None]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["label"] = np.zeros((1, 1), np.uint8)
        make(file, tmp_path)
    with pytest.raises(InputError, match="Expected an array 'data' in the file itself"):
        reader.read(tmp_path / "a.h5", WANTED)


@pytest.mark.parametrize(
    ("make", "message"),
    [pytest.param(make, message, id=str(name)) for name, make, message in HOSTILE_HDF5],
)
def test_false_sizes_are_rejected(reader: Hdf5Reader, tmp_path: Path, make: Callable[[], bytes], message: str) -> None:
    (tmp_path / "a.h5").write_bytes(make())
    with pytest.raises(InputError, match=f"a.h5: .*{message}"):
        reader.read(tmp_path / "a.h5", WANTED)


def test_a_crash_rejects_one_file_and_the_next_is_read(tmp_path: Path) -> None:
    fine = {"data": np.zeros((1, 2, 9), "f4"), "label": np.zeros((1, 2), "u1")}
    (tmp_path / "a.h5").write_bytes(hdf5(fine))
    with Hdf5Reader() as reader:
        reader.read(tmp_path / "a.h5", WANTED)
        child = reader._child
        assert child is not None
        os.kill(child.pid, signal.SIGSEGV)
        child.wait()
        with pytest.raises(InputError, match=r"a\.h5: cannot be read as HDF5 \(libhdf5 ended with status -11\)"):
            reader.read(tmp_path / "a.h5", WANTED)
        assert reader.read(tmp_path / "a.h5", WANTED)["data"].shape == (1, 2, 9)
    assert reader._child is None


def test_data_sets_reject_invalid_values(tmp_path: Path) -> None:
    parts = {"pid": np.zeros((1, 2), "u1"), "label": np.zeros((1, 1), "u1")}
    for wrong, message in (
        ({"data": np.zeros((1, 2, 3)), **parts, "label": np.full((1, 1), 16)}, r"Expected classes 0\.\.15 \(got 16"),
        ({"data": np.zeros((1, 2, 3)), **parts, "pid": np.full((1, 2), -1)}, r"Expected classes 0\.\.49 \(got -1"),
        ({"data": np.full((1, 2, 3), np.nan), **parts}, r"Expected numbers within ±1e\+15 \(got nan"),
        ({"data": np.full((1, 2, 3), 1e300), **parts}, r"Expected numbers within ±1e\+15"),
    ):
        (tmp_path / "ply_data_train0.h5").write_bytes(hdf5(wrong))
        with pytest.raises(InputError, match=rf"ply_data_train0\.h5: {message}"):
            load_shapenet_part(tmp_path, "train")
    for k, points in enumerate((2, 3)):
        arrays = {"data": np.zeros((1, points, 9)), "label": np.zeros((1, points), "u1")}
        (tmp_path / f"ply_data_all_{k}.h5").write_bytes(hdf5(arrays))
    with pytest.raises(InputError, match=r"ply_data_all_1\.h5: Expected 2 points .*got 3"):
        load_blocks(tmp_path)
    (tmp_path / "ply_data_all_1.h5").unlink()
    (tmp_path / "room_filelist.txt").write_text("kitchen\n")
    with pytest.raises(InputError, match=r"room_filelist\.txt, name 1: Expected Area_<k>_<room> \(got 'kitchen'\)"):
        load_blocks(tmp_path)
