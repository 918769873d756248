"""ShapeNet-Part in every published layout.

16 categories, 50 parts, 16,881 shapes; the official lists give 12,137 / 1,870 / 2,874 for training, validation, test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.arrays import load_npz
from fgnn.data.hdf5 import Hdf5Reader
from fgnn.data.values import as_classes, as_float32, check_same_points, read_rows
from fgnn.errors import InputError, reason
from fgnn.files import read_text

CATEGORIES = (
    "Airplane", "Bag", "Cap", "Car", "Chair", "Earphone", "Guitar", "Knife", "Lamp", "Laptop", "Motorbike", "Mug",
    "Pistol", "Rocket", "Skateboard", "Table",
)  # fmt: skip
SYNSETS = (
    "02691156", "02773838", "02954340", "02958343", "03001627", "03261776", "03467517", "03624134", "03636649",
    "03642806", "03790512", "03797390", "03948459", "04099429", "04225987", "04379243",
)  # fmt: skip
PART_COUNTS = (4, 2, 2, 4, 4, 3, 3, 2, 4, 2, 6, 2, 3, 3, 3, 3)
FIRST_PART = tuple(int(n) for n in np.cumsum((0, *PART_COUNTS[:-1])))
PARTS = tuple(tuple(range(first, first + n)) for first, n in zip(FIRST_PART, PART_COUNTS, strict=True))
NUM_PARTS = sum(PART_COUNTS)
SPLITS = ("train", "val", "test")
_LIST = "train_test_split/shuffled_{}_file_list.json"
_MOST_LIST = 64 << 20  # bytes


@dataclass(frozen=True, eq=False)
class Shapes:
    """Shapes of any number of points in one array; ``offsets`` are where each shape begins."""

    xyz: NDArray[np.float32]  # shape: (P, 3)
    label: NDArray[np.uint8]  # shape: (P,), global part id 0..49
    offsets: NDArray[np.int64]  # shape: (S + 1,)
    category: NDArray[np.uint8]  # shape: (S,)
    name: NDArray[np.str_]  # shape: (S,), "synset/id": bare ids are not unique

    def __len__(self) -> int:
        return len(self.category)

    def __getitem__(self, s: int) -> tuple[NDArray[np.float32], NDArray[np.uint8], int]:
        """Points, labels and category of one shape."""
        if not 0 <= s < len(self):
            raise IndexError(f"Expected a shape below {len(self)} (got {s})")
        part = slice(int(self.offsets[s]), int(self.offsets[s + 1]))
        return self.xyz[part], self.label[part], int(self.category[s])

    def select(self, which: NDArray[Any]) -> Shapes:
        """The shapes of an index array or a mask."""
        index = np.arange(len(self))[which]
        points = [np.arange(self.offsets[s], self.offsets[s + 1]) for s in index]
        flat = np.concatenate(points) if points else np.zeros(0, np.int64)
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in points])]).astype(np.int64)
        return Shapes(self.xyz[flat], self.label[flat], offsets, self.category[index], self.name[index])

    def without(self, other: Shapes) -> Shapes:
        """Drop the shapes that are also in ``other`` (the official lists overlap by 23, 9 and 3 shapes)."""
        return self.select(~np.isin(self.name, other.name))

    def stacked(self) -> tuple[NDArray[np.float32], NDArray[np.uint8]] | None:
        """Points (S, P, 3) and labels (S, P) if all shapes have the same number of points, else None."""
        sizes = np.diff(self.offsets)
        if not len(sizes) or (sizes != sizes[0]).any():
            return None
        return self.xyz.reshape(len(self), -1, 3), self.label.reshape(len(self), -1)

    def normalised(self) -> Shapes:
        """Each shape centred on its centroid and scaled to the unit sphere, as the point networks expect."""
        xyz = self.xyz.copy()
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            points = xyz[begin:end] - xyz[begin:end].mean(0)
            radius = float(np.sqrt((points**2).sum(1)).max()) if len(points) else 0.0
            xyz[begin:end] = points / radius if radius > 0 else points
        return replace(self, xyz=xyz)


def load_shapenet_part(root: str | Path, split: str) -> Shapes:
    """Load one split in whichever published layout ``root`` has.

    These are: packed ``train_0.npz …`` files; ``hdf5_data/`` (``ply_data_train0.h5 …``); the ``_normal`` text release;
    ``PartAnnotation/`` with ``.pts``/``.seg``. The last two need the official ``train_test_split`` lists.
    """
    folder = Path(root)
    if split not in SPLITS:
        raise ValueError(f"Expected a split among {', '.join(SPLITS)} (got {split!r})")
    if not folder.is_dir():
        raise InputError("no such folder", file=folder)
    for pattern, load in _LAYOUTS.items():
        if any(folder.glob(pattern)):
            return load(folder, split)
    raise InputError(f"Expected ShapeNet-Part in a known layout (none of {', '.join(_LAYOUTS)})", file=folder)


def _packed(folder: Path, split: str) -> Shapes:
    files = sorted(folder.glob("train_*.npz")) if split == "train" else [folder / f"{split}.npz"]
    with ThreadPoolExecutor(len(files)) as pool:  # LZMA, which takes the time, releases the GIL
        xyz, label, category, name = zip(*pool.map(_unpack, files), strict=True)
    check_same_points(files, xyz)
    return _uniform(np.concatenate(xyz), np.concatenate(label), np.concatenate(category), np.concatenate(name))


def _unpack(file: Path) -> tuple[NDArray[Any], ...]:
    """Points (S, P, 3), labels, categories and names of one packed file."""
    try:
        data = load_npz(file)
        # a member that is not an array comes as bytes
        planes, label, category, name = (np.asarray(data[k]) for k in ("planes", "label", "category", "name"))
    except InputError:
        raise
    except Exception as error:  # NumPy, zipfile and the decompressors raise many kinds on junk
        raise InputError(f"cannot be read as packed ShapeNet-Part ({reason(error)})", file=file) from error
    shape = planes.shape[2:]
    fits = len(shape) == 2 and 0 not in shape and planes.shape == (2, 3, *shape) and label.shape == shape
    fits = fits and category.shape == name.shape == shape[:1] and planes.dtype == np.uint8
    if not fits or name.dtype.kind != "U" or {label.dtype.kind, category.dtype.kind} - {"i", "u"}:
        got = ", ".join(f"{a.dtype} {a.shape}" for a in (planes, label, category, name))
        raise InputError(
            f"Expected planes (2, 3, S, P) of bytes, labels (S, P), categories and names (got {got})", file=file
        )
    label, category = as_classes(file, label, NUM_PARTS), as_classes(file, category, len(CATEGORIES))
    step = planes[0].astype(np.int32) + 256 * planes[1].astype(np.int32)  # shape: (3, S, P)
    grid = np.cumsum((step >> 1) ^ -(step & 1), axis=2)  # zig-zag
    return (2 * grid / 4095 - 1).astype(np.float32).transpose(1, 2, 0), label, category, name


def _hdf5(folder: Path, split: str) -> Shapes:
    base = folder if any(folder.glob("ply_data_*.h5")) else folder / "hdf5_data"
    files = sorted(base.glob(f"ply_data_{split}*.h5"))
    if not files:
        raise InputError(f"Expected ply_data_{split}*.h5", file=base)
    with Hdf5Reader() as reader:
        xyz, label, category = zip(*(_shape_file(reader, file) for file in files), strict=True)
    check_same_points(files, xyz)
    every = np.concatenate(category)
    names = np.array([f"{SYNSETS[c]}/h5-{split}-{i}" for i, c in enumerate(every)])  # this layout has no ids
    return _uniform(np.concatenate(xyz), np.concatenate(label), every, names)


def _shape_file(reader: Hdf5Reader, file: Path) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint8]]:
    """Points (S, P, 3), parts (S, P) and categories (S,) of one HDF5 file."""
    arrays = reader.read(file, {"data": ("iuf", "S P 3"), "pid": ("iu", "S P"), "label": ("iu", "S")})
    category = as_classes(file, arrays["label"], len(CATEGORIES))
    return as_float32(file, arrays["data"]), as_classes(file, arrays["pid"], NUM_PARTS), category


def _normal_text(folder: Path, split: str) -> Shapes:
    def read(synset: str, model: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        rows = read_rows(folder / synset / f"{model}.txt", 7)
        return rows[:, :3].astype(np.float32), rows[:, 6].astype(np.int64)  # the label is a global part id

    return _gather(folder, _listed(folder / _LIST.format(split)), read)


def _part_annotation(folder: Path, split: str) -> Shapes:
    base = folder / "PartAnnotation" if (folder / "PartAnnotation").is_dir() else folder

    def read(synset: str, model: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        points = read_rows(base / synset / "points" / f"{model}.pts", 3)
        seg = base / synset / "expert_verified" / "points_label" / f"{model}.seg"
        local = read_rows(seg, 1)[:, 0].astype(np.int64)  # 1-based within the category
        if len(local) != len(points):
            raise InputError(f"Expected {len(points)} labels (got {len(local)})", file=seg)
        return points.astype(np.float32), local - 1 + FIRST_PART[SYNSETS.index(synset)]

    lists = folder if (folder / "train_test_split").is_dir() else base
    return _gather(base, _listed(lists / _LIST.format(split)), read)


def _listed(file: Path) -> Iterator[tuple[str, str]]:
    """Synset and id of each shape of an official list."""
    try:
        entries = json.loads(read_text(file, _MOST_LIST))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as an official list ({error})", file=file) from error
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, str) for entry in entries):
        raise InputError("Expected a list of shapes, at least one, as shape_data/<synset>/<id>", file=file)
    for entry in entries:
        synset, _, model = "/".join(entry.split("/")[-2:]).partition("/")
        if synset not in SYNSETS or not re.fullmatch(r"[\w.-]{1,128}", model):
            raise InputError(f"Expected <known synset>/<id> (got {entry!r})", file=file)
        yield synset, model


def _gather(
    folder: Path,
    listed: Iterator[tuple[str, str]],
    read: Callable[[str, str], tuple[NDArray[np.float32], NDArray[np.int64]]],
) -> Shapes:
    xyz, label, category, name, lengths = [], [], [], [], [0]
    for synset, model in listed:
        points, labels = read(synset, model)
        kind = SYNSETS.index(synset)
        if len(labels) and not (PARTS[kind][0] <= labels.min() and labels.max() <= PARTS[kind][-1]):
            what = f"Expected parts {PARTS[kind][0]}..{PARTS[kind][-1]}"
            raise InputError(what, file=folder, place=f"{synset}/{model}")
        xyz.append(points)
        label.append(labels.astype(np.uint8))
        category.append(kind)
        name.append(f"{synset}/{model}")
        lengths.append(len(points))
    return Shapes(
        np.concatenate(xyz), np.concatenate(label), np.cumsum(lengths), np.array(category, np.uint8), np.array(name)
    )


def _uniform(xyz: Any, label: Any, category: Any, name: Any) -> Shapes:
    shapes, points = label.shape
    return Shapes(xyz.reshape(-1, 3), label.reshape(-1), np.arange(shapes + 1, dtype=np.int64) * points, category, name)


# A file of each layout -> its loader; the order matters only for folders with several layouts.
_LAYOUTS: dict[str, Callable[[Path, str], Shapes]] = {
    "train_0.npz": _packed,
    "ply_data_*.h5": _hdf5,
    "hdf5_data/ply_data_*.h5": _hdf5,
    "PartAnnotation": _part_annotation,
    "0*/points": _part_annotation,
    "0*/*.txt": _normal_text,
}
