"""NPY and NPZ: an (N, D) array, a structured array, or named arrays; never pickled objects."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError, reason
from fgnn.files import atomic_write, may_expand_to
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader, join_clouds
from fgnn.points.formats.records import records

_COORDINATES = ("xyz", "points", "pos", "coord")


@dataclass(frozen=True, eq=False)
class NumpyReader:
    """Arrays in chunks; an NPY file is mapped, not read."""

    path: Path
    header: CloudHeader
    xyz: NDArray[Any]  # shape: (N, 3)
    columns: dict[str, NDArray[Any]]  # each of shape (N,)

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        for start in range(0, len(self.xyz), size):
            rows = slice(start, start + size)
            fields = {n: np.array(values[rows]) for n, values in self.columns.items()}
            with np.errstate(invalid="ignore", over="ignore"):  # copying a signalling NaN warns
                xyz = np.array(self.xyz[rows], dtype=np.float64)
            yield Cloud(xyz, fields, self.header)


def open_reader(path: Path) -> NumpyReader:
    """Map an NPY file or open an NPZ archive."""
    try:
        if path.suffix.lower() == ".npy":
            arrays = {"points": np.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            arrays = load_npz(path)
        xyz, columns = _find(arrays, path)
    except InputError:
        raise
    except Exception as error:  # NumPy and zipfile raise many kinds on junk
        raise InputError(f"cannot be read as {path.suffix} ({reason(error, 'not an array')})", file=path) from error
    for name, values in {"coordinates": xyz, **columns}.items():
        if len(values) != len(xyz):
            raise InputError(f"Expected {len(xyz)} values (got {len(values)})", file=path, place=name)
        if values.dtype.kind not in "biuf":
            raise InputError(f"Expected real numbers (got {values.dtype})", file=path, place=name)
    fields = {name: values.dtype for name, values in columns.items()}
    return NumpyReader(path, CloudHeader(path.suffix.lower(), len(xyz), fields), xyz, columns)


def load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an archive; a compression bomb is refused before it is unpacked."""
    with path.open("rb") as raw:
        most = may_expand_to(path.stat().st_size)
        with zipfile.ZipFile(raw) as members:
            total = sum(member.file_size for member in members.infolist())
        if total > most:
            raise InputError(f"expands to {total} bytes, more than the {most} allowed for it", file=path)
        raw.seek(0)
        with np.load(raw, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def _find(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """The coordinates (N, 3) and the fields."""
    only = next(iter(arrays.values())) if len(arrays) == 1 else None
    if only is not None and only.dtype.names and set(AXES) <= set(only.dtype.names):
        xyz = np.stack([only[axis] for axis in AXES], axis=1)
        return xyz, {n: only[n] for n in only.dtype.names if n not in AXES}
    if only is not None and only.ndim == 2 and only.shape[1] >= 3 and np.issubdtype(only.dtype, np.number):
        names = ["red", "green", "blue", "label"] if only.shape[1] in (6, 7) else []
        rest = {names[c - 3] if c - 3 < len(names) else f"column_{c}": only[:, c] for c in range(3, only.shape[1])}
        return only[:, :3], rest
    if set(AXES) <= set(arrays):
        xyz = np.stack([arrays[axis] for axis in AXES], axis=1)
        return xyz, _flat({n: v for n, v in arrays.items() if n not in AXES}, path)
    for name in _COORDINATES:
        if name in arrays and arrays[name].ndim == 2 and arrays[name].shape[1] == 3:
            return arrays[name], _flat({n: v for n, v in arrays.items() if n != name}, path)
    shapes = ", ".join(f"{n} {v.shape}" for n, v in arrays.items())[:100]
    raise InputError(f"Expected an (N, 3+) array or one named xyz (got {shapes or 'none'})", file=path)


def _flat(arrays: dict[str, NDArray[Any]], path: Path) -> dict[str, NDArray[Any]]:
    """Split (N, D) arrays into one field per column, e.g. rgb → red, green, blue."""
    flat: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        if values.ndim == 1 and not values.dtype.names:
            flat[name] = values
        elif values.ndim == 2 and values.shape[1] <= 64:
            parts = ["red", "green", "blue"] if name in ("rgb", "color", "colors") and values.shape[1] == 3 else []
            for c in range(values.shape[1]):
                flat[parts[c] if parts else f"{name}_{c}"] = values[:, c]
        else:
            what = f"Expected one value or one row per point (got shape {values.shape})"
            raise InputError(what, file=path, place=name)
    return flat


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write an NPZ of named arrays, or chunk by chunk a structured NPY array."""
    if path.suffix.lower() == ".npz":
        whole = join_clouds(list(parts))
        arrays: dict[str, Any] = {"xyz": whole.xyz, **whole.fields}
        with atomic_write(path, "wb") as out:
            np.savez_compressed(out, **arrays)
        return
    dtype = np.dtype([(axis, np.float64) for axis in AXES] + [(n, v.dtype) for n, v in first.fields.items()])
    with atomic_write(path, "wb") as out:
        head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_2_0(out, head)
        for part in parts:
            out.write(records(part, dtype).tobytes())
