"""NPY and NPZ: an (N, D) array, a structured array, or named arrays; never pickled objects."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fgnn.arrays import load_npz
from fgnn.errors import InputError, reason
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader, join_clouds
from fgnn.points.formats.records import records
from fgnn.points.formats.storable import check_values, refuse
from fgnn.points.spool import release_pages

_COORDINATES = ("xyz", "points", "pos", "coord")
# An array of no rows may declare any number of columns, and each becomes a field.
_MOST_COLUMNS = 4096
_MOST_HEADER = 10_000  # bytes; NumPy reads no longer ones

Axes = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class NumpyReader:
    """Arrays in chunks; an NPY file is mapped, not read."""

    path: Path
    header: CloudHeader
    axes: Axes  # x, y and z, each of shape (N,)
    columns: dict[str, NDArray[Any]]  # each of shape (N,)

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        for start in range(0, self.header.count, size):
            rows = slice(start, start + size)
            fields = {n: np.array(values[rows]) for n, values in self.columns.items()}
            with np.errstate(invalid="ignore", over="ignore"):  # copying a signalling NaN warns
                xyz = np.stack([np.array(axis[rows], dtype=np.float64) for axis in self.axes], axis=1)
            release_pages(self.axes[0])
            yield Cloud(xyz, fields, self.header)


def open_reader(path: Path) -> NumpyReader:
    """Map an NPY file or open an NPZ archive."""
    try:
        if path.suffix.lower() == ".npy":
            arrays = {"points": np.load(path, mmap_mode="r", allow_pickle=False)}
        else:
            arrays = load_npz(path)
        axes, columns = _find(arrays, path)
    except InputError:
        raise
    except Exception as error:  # NumPy and zipfile raise many kinds on junk
        raise InputError(f"cannot be read as {path.suffix} ({reason(error, 'not an array')})", file=path) from error
    count = len(axes[0])
    for name, values in {**dict(zip(AXES, axes, strict=True)), **columns}.items():
        if values.shape != (count,):
            raise InputError(f"Expected {count} values (got shape {values.shape})", file=path, place=name)
        if values.dtype.kind not in "biuf":
            raise InputError(f"Expected real numbers (got {values.dtype})", file=path, place=name)
    fields = {name: values.dtype for name, values in columns.items()}
    return NumpyReader(path, CloudHeader(path.suffix.lower(), count, fields), axes, columns)


def _find(arrays: dict[str, NDArray[Any]], path: Path) -> tuple[Axes, dict[str, NDArray[Any]]]:
    """The coordinates and the fields."""
    only = next(iter(arrays.values())) if len(arrays) == 1 else None
    if only is not None and only.dtype.names and set(AXES) <= set(only.dtype.names):
        return (only["x"], only["y"], only["z"]), {n: only[n] for n in only.dtype.names if n not in AXES}
    if only is not None and only.ndim == 2 and only.shape[1] >= 3 and np.issubdtype(only.dtype, np.number):
        if only.shape[1] > _MOST_COLUMNS:
            raise InputError(f"Expected at most {_MOST_COLUMNS} columns (got {only.shape[1]})", file=path)
        names = ["red", "green", "blue", "label"] if only.shape[1] in (6, 7) else []
        rest = {names[c - 3] if c - 3 < len(names) else f"column_{c}": only[:, c] for c in range(3, only.shape[1])}
        return _axes(only), rest
    if set(AXES) <= set(arrays):
        return (arrays["x"], arrays["y"], arrays["z"]), _flat({n: v for n, v in arrays.items() if n not in AXES}, path)
    for name in _COORDINATES:
        if name in arrays and arrays[name].ndim == 2 and arrays[name].shape[1] == 3:
            return _axes(arrays[name]), _flat({n: v for n, v in arrays.items() if n != name}, path)
    shapes = ", ".join(f"{n} {v.shape}" for n, v in arrays.items())[:100]
    raise InputError(f"Expected an (N, 3+) array or one named xyz (got {shapes or 'none'})", file=path)


def _axes(rows: NDArray[Any]) -> Axes:
    return rows[:, 0], rows[:, 1], rows[:, 2]


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


def check(first: Cloud, part: Cloud, path: Path) -> None:
    """NPZ takes any text as a name, and the header of NPY text in Latin-1; both take any numbers."""
    for name, values in part.fields.items():
        check_values(name, values, values.dtype, path)
        try:
            name.encode("utf-8" if path.suffix.lower() == ".npz" else "latin-1")
        except UnicodeEncodeError:
            raise refuse(name, "its name has other characters", path) from None
        if not name or "\0" in name:
            raise refuse(name, "its name is empty or has a NUL", path)
    if path.suffix.lower() == ".npz":
        _free_name(part, path)
    elif len(_npy_header(_record_type(part), 0)) > _MOST_HEADER:
        raise InputError(f"Expected names that fit a header of {_MOST_HEADER} bytes; write .npz instead", file=path)


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write an NPZ of named arrays, or chunk by chunk a structured NPY array."""
    with atomic_write(path, "wb") as out:
        if path.suffix.lower() == ".npz":
            whole = join_clouds(list(parts))
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, values in {_free_name(whole, path): whole.xyz, **whole.fields}.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        npy.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
            return
        dtype = _record_type(first)
        out.write(_npy_header(dtype, count))
        for part in parts:
            out.write(records(part, dtype).tobytes())


def _free_name(cloud: Cloud, path: Path) -> str:
    """A name for the coordinates that no field has."""
    free = [name for name in _COORDINATES if name not in cloud.fields]
    if not free:
        raise InputError(f"Expected fields with other names than {', '.join(_COORDINATES)}", file=path)
    return free[0]


def _record_type(cloud: Cloud) -> np.dtype[Any]:
    return np.dtype([(axis, np.float64) for axis in AXES] + [(n, v.dtype) for n, v in cloud.fields.items()])


def _npy_header(dtype: np.dtype[Any], count: int) -> bytes:
    out = io.BytesIO()
    head = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_2_0(out, head)
    return out.getvalue()
