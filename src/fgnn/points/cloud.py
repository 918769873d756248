"""Point clouds: float64 coordinates and every other field of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError, printable
from fgnn.files import check_input
from fgnn.points.cloud_html import cloud_html

# Points per chunk when a file is streamed: a few tens of megabytes for the usual fields.
CHUNK = 1 << 19

# Names of the coordinates; all other names are fields.
AXES = ("x", "y", "z")

# Module of each suffix, imported on use: most formats need an optional package.
FORMATS: dict[str, str] = {
    ".ply": "fgnn.points.formats.ply",
    ".las": "fgnn.points.formats.las",
    ".laz": "fgnn.points.formats.las",
    ".pcd": "fgnn.points.formats.pcd",
    ".e57": "fgnn.points.formats.e57",
    ".bin": "fgnn.points.formats.kitti",
    ".xyz": "fgnn.points.formats.text",
    ".txt": "fgnn.points.formats.text",
    ".csv": "fgnn.points.formats.text",
    ".npy": "fgnn.points.formats.numpy_",
    ".npz": "fgnn.points.formats.numpy_",
}
# A folder of point tiles is known by this file in it.
EPT = "ept.json"


@dataclass(frozen=True, eq=False)
class CloudHeader:
    """The fields of a file, and what its format needs to write it again."""

    suffix: str
    count: int
    fields: Mapping[str, np.dtype[Any]]
    keep: Mapping[str, Any] = field(default_factory=dict, repr=False)  # each format has its own keys

    def empty(self) -> Cloud:
        """A cloud of no points with these fields."""
        return Cloud(np.zeros((0, 3)), {name: np.zeros(0, dtype) for name, dtype in self.fields.items()}, self)


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points with any fields.

    Coordinates are float64: survey coordinates (a northing of 5,000,000.12 m) do not fit float32. `local` gives float32
    coordinates relative to an origin, for networks and k-NN.
    """

    xyz: NDArray[np.float64]  # shape: (N, 3)
    fields: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # each of shape (N,)
    header: CloudHeader | None = None

    def __post_init__(self) -> None:
        if self.xyz.ndim != 2 or self.xyz.shape[1] != 3:
            raise ValueError(f"Expected coordinates of shape (N, 3) (got {self.xyz.shape})")
        for name, values in self.fields.items():
            if len(values) != len(self.xyz):
                raise ValueError(f"Expected {len(self.xyz)} values in field {name!r} (got {len(values)})")

    def __len__(self) -> int:
        return len(self.xyz)

    def __getitem__(self, which: slice | NDArray[Any]) -> Cloud:
        """The points of a slice, a mask or an index array."""
        return replace(self, xyz=self.xyz[which], fields={n: v[which] for n, v in self.fields.items()})

    def __repr__(self) -> str:
        return f"Cloud({len(self):,} points; {printable(', '.join(self.fields)) or 'no fields'})"

    def _repr_html_(self) -> str:
        return cloud_html(self)

    def column(self, name: str) -> NDArray[Any]:
        """A coordinate or a field by name."""
        return self.xyz[:, AXES.index(name)] if name in AXES else self.fields[name]

    @property
    def keep(self) -> Mapping[str, Any]:
        """What the format of the cloud's file needs to write it again."""
        return self.header.keep if self.header is not None else {}

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which points have finite coordinates."""
        return np.asarray(np.isfinite(self.xyz).all(1))

    @property
    def origin(self) -> NDArray[np.float64]:
        """The lowest corner of the valid points, rounded down to whole units."""
        valid = self.xyz[self.valid]
        return np.floor(valid.min(0)) if len(valid) else np.zeros(3)

    def local(self, origin: NDArray[np.float64] | None = None) -> NDArray[np.float32]:
        """Float32 coordinates relative to ``origin`` (by default the cloud's)."""
        return (self.xyz - (self.origin if origin is None else origin)).astype(np.float32)

    @property
    def rgb(self) -> NDArray[np.float32] | None:
        """Colours in 0..1, shape (N, 3), if the cloud has them under a usual name."""
        for names in (("red", "green", "blue"), ("r", "g", "b"), ("diffuse_red", "diffuse_green", "diffuse_blue")):
            if all(name in self.fields for name in names):
                with np.errstate(over="ignore", invalid="ignore"):  # colours beyond float32 become 0
                    stack = np.stack([self.fields[name] for name in names], axis=1).astype(np.float32)
                stack = np.nan_to_num(stack, nan=0.0, posinf=0.0, neginf=0.0)
                top = float(stack.max()) if stack.size else 0.0
                # 8-bit, 16-bit (LAS) or already in 0..1; a 16-bit field often holds 8-bit values
                scale = 1.0 if top <= 1.0 else 255.0 if top <= 255.0 else 65535.0
                return stack / np.float32(scale)
        packed = self.fields.get("rgb", self.fields.get("rgba"))
        if packed is not None and packed.dtype.itemsize == 4:  # PCL packs 0x00RRGGBB into a float or an integer
            bits = np.ascontiguousarray(packed).view(np.uint32)
            channels = np.stack([(bits >> shift) & 255 for shift in (16, 8, 0)], axis=1)
            return channels.astype(np.float32) / np.float32(255)
        return None

    def with_fields(self, **extra: NDArray[Any]) -> Cloud:
        """The cloud with more fields; an existing field of that name becomes ``<name>_original`` (``…_2``, ``…_3``)."""
        fields = dict(self.fields)
        for name, values in extra.items():
            if name in fields:
                spares = chain([f"{name}_original"], (f"{name}_original_{k}" for k in count(2)))
                fields[next(spare for spare in spares if spare not in fields)] = fields.pop(name)
            fields[name] = values
        return replace(self, fields=fields)


class CloudReader(Protocol):
    """A cloud read in chunks."""

    header: CloudHeader

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]: ...


class HeldCloud:
    """A cloud in memory, read like a file."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.header = cloud.header or CloudHeader("", len(cloud), {n: v.dtype for n, v in cloud.fields.items()})

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        for start in range(0, len(self.cloud), size):
            yield replace(self.cloud[start : start + size], header=self.header)


def open_cloud(path: str | Path) -> CloudReader:
    """Open a cloud to read it in chunks; LAS, LAZ, EPT, PLY, E57, NPY and text take constant memory."""
    file = Path(path)
    if (file / EPT).is_file():
        file = file / EPT
    check_input(file)
    reader: CloudReader = _module(file).open_reader(file)
    return reader


def read_cloud(path: str | Path) -> Cloud:
    """Read a whole cloud: PLY, LAS, LAZ, PCD, E57, KITTI's BIN, XYZ/TXT/CSV, NPY or NPZ by suffix, or EPT."""
    reader = open_cloud(path)
    return join_clouds(list(reader.chunks()) or [reader.header.empty()])


def join_clouds(parts: Sequence[Cloud]) -> Cloud:
    """Clouds with the same fields, one after the other."""
    if len(parts) == 1:
        return parts[0]
    fields = {name: np.concatenate([part.fields[name] for part in parts]) for name in parts[0].fields}
    return Cloud(np.concatenate([part.xyz for part in parts]), fields, parts[0].header)


def write_cloud(cloud: Cloud, path: str | Path) -> None:
    """Write a cloud with all its fields in the format of the suffix; the file appears whole or not at all."""
    write_chunks([cloud], path, count=len(cloud))


def write_chunks(parts: Iterable[Cloud], path: str | Path, count: int) -> None:
    """Write a cloud that arrives in chunks, ``count`` points in all."""
    check_writable(path)
    rest = iter(parts)
    first = next(rest)
    check_storable(first, first, path)

    def checked() -> Iterator[Cloud]:
        yield first
        for part in rest:
            check_storable(first, part, path)
            yield part

    _module(Path(path)).write(first, checked(), Path(path), count)


def check_storable(first: Cloud, part: Cloud, path: str | Path) -> None:
    """Raise `InputError` if the format would change a field of ``part``, in a file that starts with ``first``."""
    for name in AXES:
        if name in part.fields:
            raise InputError(f"Expected another name for the field {name!r}: it is a coordinate", file=path)
    _module(Path(path)).check(first, part, Path(path))


def check_writable(path: str | Path) -> None:
    """Raise `InputError` unless the format can be written and the folder exists: call it before long work."""
    file = Path(path)
    if not file.parent.is_dir():
        raise InputError("no such folder", file=file.parent)
    if not hasattr(_module(file), "write"):
        raise InputError(f"{file.suffix} files can be read but not written; use .laz or .ply", file=file)


def _module(file: Path) -> Any:
    if file.name == EPT:
        return import_module("fgnn.points.formats.ept")
    suffix = file.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"Expected a cloud in {' '.join(FORMATS)} (got '{file.suffix}')", file=file)
    return import_module(FORMATS[suffix])
