"""Every reader takes regular files only: a pipe would block it, a device would never end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fgnn
from fgnn.data.hdf5 import Hdf5Reader
from fgnn.data.labelled import Classes
from fgnn.data.s3dis import load_room
from fgnn.data.stored import load_models
from fgnn.data.values import read_rows
from fgnn.errors import InputError
from fgnn.files import check_input, read_input, read_text, same_file
from fgnn.pgm.io import read_evidence
from fgnn.points.cloud import FORMATS, open_cloud
from fgnn.points.formats.numpy_ import load_npz
from fgnn.tasks.recipe import read_recipe
from fgnn.weights import load_weights
from fgnn.weights.cards import read_card

pytestmark = pytest.mark.timeout(20)


def _read_hdf5(path: Path) -> Any:
    with Hdf5Reader() as reader:
        return reader.read(path, {"data": ("f", "S P 9")})


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    **{f"a cloud as {suffix}": (f"a{suffix}", open_cloud) for suffix in FORMATS},
    **{f"a model as {suffix}": (f"a{suffix}", fgnn.read_model) for suffix in (".uai", ".fg", ".bif", ".wcsp", ".cfn")},
    "a native model": ("a.fgm", fgnn.read_model),
    "a compressed model": ("a.uai.gz", fgnn.read_model),
    "evidence": ("a.evid", lambda path: read_evidence(path, np.array([2]))),
    "classes": ("classes.txt", Classes.read),
    "a room": ("Area_1_a_1.npy", load_room),
    "rows of text": ("a.txt", lambda path: read_rows(path, 3)),
    "packed arrays": ("a.npz", load_npz),
    "HDF5": ("a.h5", _read_hdf5),
    "a recipe": ("a.yaml", read_recipe),
    "weights": ("a.safetensors", load_weights),
    "a card": ("a.safetensors", read_card),
    "a stored set": ("dataset.json", lambda path: load_models(path.parent)),
}


@pytest.mark.parametrize("what", READERS)
def test_pipes_devices_and_folders_are_refused(tmp_path: Path, what: str) -> None:
    name, read = READERS[what]
    make: dict[str, Callable[[Path], None]] = {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": Path.mkdir,
        "nothing": lambda path: None,
    }
    for kind, create in make.items():
        folder = tmp_path / kind
        folder.mkdir()
        create(folder / name)
        with pytest.raises(InputError) as refused:
            read(folder / name)
        assert str(folder) in str(refused.value)
        assert str(refused.value).isprintable()


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    assert read_input(file, 5) == b"12345"
    assert check_input(file) == 5
    with pytest.raises(InputError, match="at most 4 bytes"):
        read_input(file, 4)
    with pytest.raises(InputError, match="at most 10 bytes"):
        read_input("/proc/self/maps", 10)  # declares a size of 0
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match="UTF-8"):
        read_text(file, 10)
    with pytest.raises(InputError, match="null"):
        check_input("a\0b")


def test_paths_of_one_file_are_recognised(tmp_path: Path) -> None:
    file = tmp_path / "a"
    assert same_file(file, tmp_path / "b" / ".." / "a")  # neither exists
    file.touch()
    (tmp_path / "link").symlink_to(file)
    assert same_file(file, tmp_path / "link")
    assert not same_file(file, tmp_path / "c")
