"""LAS and LAZ through laspy, in chunks; header, scaling, projection records and extra dimensions are kept.

COPC, a LAZ whose chunks form an octree, is read like any LAZ. What is written is in no such order, so the records that
promise it are dropped."""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fgnn.errors import InputError, need, reason
from fgnn.files import atomic_write, may_expand_to
from fgnn.points.cloud import CHUNK, Cloud, CloudHeader
from fgnn.points.formats.laszip import check_laszip
from fgnn.points.formats.storable import check_values, plain_kind, refuse

_COORDINATES = ("X", "Y", "Z")
_LONGEST_NAME = 32  # bytes

# laspy logs what it meets; errors are reported as one InputError instead.
logging.getLogger("laspy").addHandler(logging.NullHandler())


@dataclass(frozen=True, eq=False)
class LasReader:
    """A LAS or LAZ file in chunks."""

    path: Path
    header: CloudHeader

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        with _reporting(self.path), self.path.open("rb") as raw, need("laspy").open(raw, closefd=False) as file:
            count = 0
            for points in file.chunk_iterator(size):
                count += len(points)
                xyz = np.stack([np.asarray(points.x), np.asarray(points.y), np.asarray(points.z)], axis=1)
                fields = {name: np.asarray(points[name]) for name in self.header.fields}
                yield Cloud(np.asarray(xyz, dtype=np.float64), fields, self.header)
            if count != self.header.count:
                raise InputError(f"ends after {count} of {self.header.count} points", file=self.path)


def open_reader(path: Path) -> LasReader:
    """Read the header of a LAS or LAZ file."""
    with path.open("rb") as raw, _reporting(path):
        _check_offsets(raw, path)
        file = need("laspy").open(raw, closefd=False)
        header = file.header
        count = int(header.point_count)
        size = path.stat().st_size
        most = may_expand_to(size) if header.are_points_compressed else size
        if count * header.point_format.size > most:
            raise InputError(f"declares {count} points but has only {size} bytes", file=path)
        if header.are_points_compressed:
            check_laszip(raw, header, path)
        fields = {
            d.name: np.dtype(np.uint8 if d.dtype is None else d.dtype)
            for d in header.point_format.dimensions
            if d.name not in _COORDINATES
        }
    return LasReader(path, CloudHeader(path.suffix.lower(), count, fields, {"las": header}))


def _check_offsets(raw: IO[bytes], path: Path) -> None:
    """Reject tables of records that the file cannot hold, before memory is allocated for them."""
    size = path.stat().st_size
    head = raw.read(375)
    raw.seek(0)
    if len(head) < 227 or head[:4] != b"LASF":
        raise InputError("cannot be read as LAS/LAZ (no LASF header)", file=path)
    header_size, points_at, records = struct.unpack_from("<HII", head, 94)
    if not 227 <= header_size <= points_at <= size or records * 54 > points_at:
        raise InputError("cannot be read as LAS/LAZ (its header points outside the file)", file=path)
    if head[25] >= 4 and len(head) >= 247:  # version 1.4: extended records behind the points
        at, number = struct.unpack_from("<QI", head, 235)
        if number and (at > size or number * 60 > size - at):
            raise InputError("cannot be read as LAS/LAZ (its extended records lie outside the file)", file=path)


def check(first: Cloud, part: Cloud, path: Path) -> None:
    """Coordinates are 32-bit steps; a field becomes the dimension of its name, or an extra one."""
    laspy = need("laspy")
    if path.name.lower().endswith(".copc.laz"):
        raise InputError("COPC files can be read but not written; use .laz", file=path)
    header = _standard_header(laspy, first)
    _check_extent(header, part, path)
    dimensions = {d.name: d for d in header.point_format.dimensions}
    packed = {*header.point_format.dtype().names, *laspy.point.dims.OLD_LASPY_NAMES}
    for name, values in part.fields.items():
        dimension = dimensions.get(name)
        if name in _COORDINATES or (dimension is None and name in packed):
            raise refuse(name, "the format uses this name itself", path)
        if ":" in name:  # it separates names in the buffers that laspy writes
            raise refuse(name, "its name has a colon", path)
        if dimension is None and not (name.isprintable() and 0 < len(name.encode()) <= _LONGEST_NAME):
            raise refuse(name, f"its name is not text of 1 to {_LONGEST_NAME} bytes", path)
        if dimension is None:
            check_values(name, values, plain_kind(values.dtype), path)
        elif dimension.dtype is None:  # a field of a few bits
            check_values(name, values, np.dtype(np.uint8), path)
            if values.size and int(values.max()) > dimension.max:
                raise refuse(name, f"some of its values are above {dimension.max}", path)
        elif not dimension.is_scaled:  # perhaps several values per point, in an old type of extra dimension
            check_values(name, values.reshape(-1), np.dtype(dimension.dtype).base, path)


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write LAS or LAZ; fields the point format lacks become extra dimensions."""
    laspy = need("laspy")
    header = _header_for(laspy, first)
    with atomic_write(path, "wb") as out:
        # laspy closes its file, but atomic_write must still sync it: give laspy a duplicate
        plain: IO[bytes] = os.fdopen(os.dup(out.fileno()), "wb")
        with (
            _as_os_error(path),
            laspy.open(
                plain, mode="w", header=header, do_compress=path.suffix.lower() == ".laz", closefd=True
            ) as writer,
        ):
            for part in parts:
                writer.write_points(_record(laspy, header, part))
            if header.evlrs:
                writer.write_evlrs(header.evlrs)


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """Turn the compressor's own error, e.g. for a full disk, into an OSError."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "LazrsError":
            raise
        raise OSError(errno.EIO, f"cannot be written ({error})", str(path)) from error


def _header_for(laspy: Any, cloud: Cloud) -> Any:
    """The header of a file for this cloud, with an extra dimension for each field that the point format lacks."""
    header = _standard_header(laspy, cloud)
    dimensions = set(header.point_format.dimension_names)
    for name, values in cloud.fields.items():
        if name not in dimensions:
            header.add_extra_dim(laspy.ExtraBytesParams(name=name, type=plain_kind(values.dtype)))
    return header


def _standard_header(laspy: Any, cloud: Cloud) -> Any:
    if (old := cloud.keep.get("las")) is not None:
        # laspy reads LAS 1.0 but does not write it; 1.2 has the same points
        version = old.version if old.version.minor else "1.2"
        header = laspy.LasHeader(point_format=deepcopy(old.point_format), version=version)
        header.offsets, header.scales = old.offsets, old.scales
        header.vlrs = [v for v in old.vlrs if type(v).__name__ not in ("LasZipVlr", "ExtraBytesVlr") and _kept(v)]
        header.evlrs = None if old.evlrs is None else type(old.evlrs)(v for v in old.evlrs if _kept(v))
        for name in ("system_identifier", "global_encoding", "creation_date", "file_source_id", "uuid"):
            setattr(header, name, getattr(old, name))
        return header
    colour = {"red", "green", "blue"} <= set(cloud.fields)
    header = laspy.LasHeader(point_format=7 if colour else 6, version="1.4")
    header.offsets, header.scales = cloud.origin, np.full(3, 1e-4)
    return header


def _kept(record: Any) -> bool:
    """Whether a record, before or behind the points, still holds for points written in another order."""
    return str(record.user_id) != "copc"


def _check_extent(header: Any, part: Cloud, path: Path) -> None:
    """Reject coordinates that are not 32-bit steps of the header's scale."""
    if not len(part):
        return
    corners = np.stack([part.xyz.min(0), part.xyz.max(0)])
    if not np.isfinite(corners).all():
        raise InputError("LAS cannot hold points without finite coordinates", file=path)
    with np.errstate(over="ignore"):
        steps = np.abs(np.round((corners - header.offsets) / header.scales))
    if not steps.max() <= np.iinfo(np.int32).max:
        raise InputError("the cloud is too wide for LAS at its scale", file=path)


def _record(laspy: Any, header: Any, part: Cloud) -> Any:
    record = laspy.ScaleAwarePointRecord.zeros(len(part), header=header)
    steps = np.round((part.xyz - header.offsets) / header.scales).astype(np.int32)
    for axis, name in enumerate(_COORDINATES):
        record[name] = steps[:, axis]
    for name, values in part.fields.items():
        if values.dtype.kind == "f" or values.any():  # the record starts with zeros, and bit fields are slow to write
            record[name] = values
    return record


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Report any fault of the file as one InputError: laspy and its LAZ backend raise many kinds."""
    try:
        yield
    except (InputError, ImportError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # lazrs panics derive from BaseException
        raise InputError(f"cannot be read as LAS/LAZ ({reason(error)})", file=path) from error
