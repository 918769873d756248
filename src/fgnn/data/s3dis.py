"""S3DIS: 272 rooms of six areas in 13 classes, as the raw release, collected arrays or HDF5 blocks."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.data.hdf5 import Hdf5Reader
from fgnn.data.values import as_classes, as_float32, check_same_points, read_rows, within
from fgnn.errors import InputError, need, reason
from fgnn.files import atomic_write, check_input, read_text, write_npy
from fgnn.points.blocks import FEWEST, POINTS, sampled_blocks

CLASSES = (
    "ceiling", "floor", "wall", "beam", "column", "window", "door", "table", "chair", "sofa", "bookcase", "board",
    "clutter",
)  # fmt: skip
AREAS = (1, 2, 3, 4, 5, 6)

# The two files of the raw release with a corrupt byte in place of a space (lines 180389 and 323474).
_CORRUPT = {("Area_5", "hallway_6", "ceiling_1.txt"), ("Area_5", "office_19", "ceiling_1.txt")}
_MOST_LIST = 64 << 20  # bytes


@dataclass(frozen=True, eq=False)
class Room:
    """One room: coordinates relative to its lowest corner, colour in 0..1, class per point."""

    name: str  # "Area_1_office_3"
    xyz: NDArray[np.float64]  # shape: (P, 3)
    rgb: NDArray[np.float64]  # shape: (P, 3)
    label: NDArray[np.int64]  # shape: (P,)

    @property
    def area(self) -> int:
        return area_of(self.name)


def area_of(name: str) -> int:
    """The area of a room; fold k tests on area k and trains on the other five."""
    match = re.match(r"Area_(\d)", name)
    if match is None:
        raise ValueError(f"Expected a room name that starts with Area_<k> (got {name!r})")
    return int(match.group(1))


def collect_room(folder: str | Path) -> Room:
    """Read a room of the raw release (``Area_1/office_3`` with ``Annotations/``).

    Unknown classes (stairs) become clutter; coordinates are relative to the room's lowest corner.
    """
    room = Path(folder)
    files = sorted((room / "Annotations").glob("*.txt"))
    if not files:
        raise InputError("Expected Annotations/<class>_<m>.txt in a room of the raw release", file=room)
    points, labels = [], []
    for file in files:
        kind = file.name.split("_")[0]
        rows = _annotation(file)
        points.append(rows)
        labels.append(np.full(len(rows), CLASSES.index(kind if kind in CLASSES else "clutter"), np.int64))
    data = np.concatenate(points)
    name = f"{room.parent.name}_{room.name}"
    return Room(name, data[:, :3] - data[:, :3].min(0), data[:, 3:] / 255, np.concatenate(labels))


def _annotation(file: Path) -> NDArray[np.float64]:
    check_input(file)
    raw = file.read_bytes()
    repaired = re.sub(rb"[^0-9eE+\-. \t\r\n]", b" ", raw)
    if raw != repaired and (*file.parts[-4:-2], file.name) not in _CORRUPT:
        first = next(i for i, (a, b) in enumerate(zip(raw, repaired, strict=True)) if a != b)
        line = raw[:first].count(b"\n") + 1
        raise InputError("Expected numbers X Y Z R G B (got another character)", file=file, place=f"line {line}")
    return read_rows(file, 6, repaired.decode("ascii").splitlines())


def save_room(room: Room, folder: str | Path) -> Path:
    """Write the collected form: float64 (N, 7) = X Y Z R G B L with colour 0–255."""
    path = Path(folder) / f"{room.name}.npy"
    rows = np.concatenate([room.xyz, np.round(room.rgb * 255), room.label[:, None]], axis=1)
    with atomic_write(path, "wb") as out:
        write_npy(out, rows.astype(np.float64))
    return path


def load_room(path: str | Path) -> Room:
    """Read the collected form."""
    file = Path(path)
    check_input(file)
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)  # mapped: a false declared size allocates nothing
    except Exception as error:  # NumPy raises many kinds on junk
        raise InputError(f"cannot be read as a collected room ({reason(error)})", file=file) from error
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "iuf" or rows.ndim != 2 or rows.shape[1] != 7:
        got = f"{rows.dtype} {rows.shape}" if isinstance(rows, np.ndarray) else "an archive"
        raise InputError(f"Expected numbers of shape (N, 7) (got {got})", file=file)
    label = as_classes(file, within(file, rows)[:, 6], len(CLASSES)).astype(np.int64)
    return Room(file.stem, rows[:, :3].astype(np.float64), rows[:, 3:6] / 255, label)


def rooms(root: str | Path, areas: tuple[int, ...] = AREAS) -> Iterator[Room]:
    """The rooms of these areas by name, from the raw release or collected ``Area_k_<room>.npy`` files."""
    folder = Path(root)
    empty = True
    for area in areas:
        raw = sorted(p for p in (folder / f"Area_{area}").glob("*_*") if (p / "Annotations").is_dir())
        collected = sorted(folder.glob(f"Area_{area}_*.npy"))
        empty = empty and not raw and not collected
        yield from map(collect_room, raw)
        yield from map(load_room, collected)
    if empty:
        names = ", ".join(f"Area_{area}" for area in areas)
        raise InputError(f"Expected rooms of {names}: Area_k/<room>/Annotations or Area_k_<room>.npy", file=folder)


@dataclass(frozen=True, eq=False)
class BlockSet:
    """The HDF5 release: blocks of 4,096 points with nine features, and the room of each."""

    features: NDArray[np.float32]  # shape: (S, P, 9)
    label: NDArray[np.uint8]  # shape: (S, P)
    room: NDArray[np.str_]  # shape: (S,)

    def fold(self, area: int, train: bool) -> NDArray[np.int64]:
        """Indices of the training blocks (all other areas) or the held-out ones (this area)."""
        inside = np.array([area_of(name) == area for name in self.room])
        return np.nonzero(~inside if train else inside)[0]


def cut_rooms(
    rooms: Iterable[Room], stride: float, seed: int = 0, points: int = POINTS, fewest: int = FEWEST
) -> BlockSet:
    """Blocks of several rooms, by `sampled_blocks`."""
    blocks, names = [], []
    for room in rooms:
        for block in sampled_blocks(room.xyz, room.rgb, room.label, stride, seed, points, fewest):
            blocks.append(block)
            names.append(room.name)
    features = np.array([block.features for block in blocks], np.float32)
    return BlockSet(features, np.array([block.label for block in blocks], np.uint8), np.array(names))


def load_blocks(root: str | Path, checksums: dict[str, str] | None = None) -> BlockSet:
    """Read ``ply_data_all_*.h5`` in the order of their numbers, with ``room_filelist.txt``.

    Args:
        root: The folder ``indoor3d_sem_seg_hdf5_data``.
        checksums: md5 by file name; a file that differs is rejected.
    """
    folder = Path(root)
    files = sorted(folder.glob("ply_data_all_*.h5"), key=lambda p: int(re.sub(r"\D", "", p.stem) or 0))
    if not files:
        raise InputError("Expected ply_data_all_*.h5", file=folder)
    for file in files:
        expected = (checksums or {}).get(file.name)
        if expected is not None and (got := md5(file)) != expected:
            raise InputError(f"Expected md5 {expected} (got {got})", file=file)
    with Hdf5Reader() as reader:
        data, labels = zip(*(_block_file(reader, file) for file in files), strict=True)
    check_same_points(files, data)
    listing = folder / "room_filelist.txt"
    if not listing.exists():
        raise InputError("Expected room_filelist.txt, one room name per block", file=folder)
    names = _room_names(listing)
    blocks = sum(len(features) for features in data)
    if len(names) != blocks:
        raise InputError(f"Expected {blocks} room names (got {len(names)})", file=listing)
    return BlockSet(np.concatenate(data), np.concatenate(labels), np.array(names))


def _block_file(reader: Hdf5Reader, file: Path) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Features (S, P, 9) and labels (S, P) of one file."""
    arrays = reader.read(file, {"data": ("iuf", "S P 9"), "label": ("iu", "S P")})
    return as_float32(file, arrays["data"]), as_classes(file, arrays["label"], len(CLASSES))


def _room_names(listing: Path) -> list[str]:
    names = read_text(listing, _MOST_LIST).split()
    for line, name in enumerate(names, 1):
        if not re.match(r"Area_\d", name):
            raise InputError(f"Expected Area_<k>_<room> (got {name!r})", file=listing, place=f"name {line}")
    return names


def save_blocks(blocks: BlockSet, folder: str | Path, per_file: int = 1000) -> None:
    """Write blocks in the layout of the HDF5 release."""
    h5py = need("h5py")
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    names = []
    for number, start in enumerate(range(0, len(blocks.features), per_file)):
        name = f"ply_data_all_{number}.h5"
        part, buffer = slice(start, start + per_file), io.BytesIO()
        with h5py.File(buffer, "w") as file:  # in memory: libhdf5 aborts the process when a disk is full
            file.create_dataset("data", data=blocks.features[part], compression="gzip", compression_opts=4)
            file.create_dataset("label", data=blocks.label[part], compression="gzip", compression_opts=1)
        with atomic_write(out / name, "wb") as raw:
            raw.write(buffer.getbuffer())
        names.append(f"indoor3d_sem_seg_hdf5_data/{name}")
    for name, lines in (("all_files.txt", names), ("room_filelist.txt", blocks.room.tolist())):
        with atomic_write(out / name) as text:
            text.write("\n".join(lines) + "\n")


def md5(path: Path) -> str:
    """The md5 of a file."""
    check_input(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
