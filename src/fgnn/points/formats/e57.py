"""E57 (ASTM E2807), parsed here: pages, the XML section, and bit-packed records, chunk by chunk.

The scans of a file are concatenated, each transformed by its pose. Page checksums are not verified; declared sizes are
checked against the file before memory is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError, reason
from fgnn.files import may_expand_to
from fgnn.points.cloud import CHUNK, Cloud, CloudHeader

_CHECKSUM = 4
_MOST_XML = 1 << 26
_FIELDS = {"colorRed": "red", "colorGreen": "green", "colorBlue": "blue"}
_CARTESIAN = ("cartesianX", "cartesianY", "cartesianZ")
_SPHERICAL = ("sphericalRange", "sphericalAzimuth", "sphericalElevation")


@dataclass(frozen=True)
class Column:
    """One field of a record; integers are packed into the fewest bits that hold their range."""

    name: str
    kind: str  # Float, Integer or ScaledInteger
    dtype: np.dtype[Any]  # of the decoded values
    bits: int  # per record
    low: int = 0
    scale: float = 1.0
    offset: float = 0.0

    @np.errstate(all="ignore")
    def decode(self, data: bytes, first_bit: int, count: int) -> NDArray[Any]:
        """Decode ``count`` values of a stream that starts ``first_bit`` bits into ``data``."""
        if self.kind == "Float":
            return np.frombuffer(data, self.dtype.newbyteorder("<"), count, first_bit // 8).astype(self.dtype)
        raw = _unpack(data, first_bit, count, self.bits)
        if self.kind == "ScaledInteger":
            return (raw.astype(np.float64) + self.low) * self.scale + self.offset
        return (raw.astype(np.int64) + self.low).astype(self.dtype)


@dataclass(frozen=True, eq=False)
class Scan:
    """Where the records of one scan lie, what they hold, and the pose of the scanner."""

    at: int  # physical offset of the section
    count: int
    columns: tuple[Column, ...]
    rotation: NDArray[np.float64]  # shape: (3, 3)
    translation: NDArray[np.float64]  # shape: (3,)


@dataclass(frozen=True, eq=False)
class E57Reader:
    """The points of all scans, in chunks."""

    path: Path
    header: CloudHeader
    page: int
    scans: tuple[Scan, ...]

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        with self.path.open("rb") as file:
            for number, scan in enumerate(self.scans):
                for rows in _records(_Pages(file, self.path, self.page), scan, size):
                    yield self._cloud(rows, scan, number)

    @np.errstate(all="ignore")  # an overflow gives a coordinate that is not finite
    def _cloud(self, rows: dict[str, NDArray[Any]], scan: Scan, number: int) -> Cloud:
        count = len(next(iter(rows.values())))
        if all(name in rows for name in _CARTESIAN):
            xyz = np.stack([rows.pop(name).astype(np.float64) for name in _CARTESIAN], axis=1)
            invalid = rows.get("cartesianInvalidState")
        else:
            reach, azimuth, elevation = (rows.pop(name).astype(np.float64) for name in _SPHERICAL)
            flat = reach * np.cos(elevation)
            xyz = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), reach * np.sin(elevation)], axis=1)
            invalid = rows.get("sphericalInvalidState")
        xyz = xyz @ scan.rotation.T + scan.translation
        if invalid is not None:
            xyz[invalid != 0] = np.nan
        named = {_FIELDS.get(n, n): values for n, values in rows.items()} | {"scan": np.full(count, number, np.uint16)}
        fields = {
            name: named[name].astype(dtype) if name in named else np.zeros(count, dtype)
            for name, dtype in self.header.fields.items()
        }
        return Cloud(xyz, fields, self.header)


def open_reader(path: Path) -> E57Reader:
    """Read the header and the XML section."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(48)
        if len(head) < 48 or head[:8] != b"ASTM-E57":
            raise InputError("cannot be read as E57 (no ASTM-E57 header)", file=path)
        length, xml_at, xml_length, page = struct.unpack_from("<QQQQ", head, 16)
        if length > size:
            raise InputError(f"ends after {size} of {length} bytes", file=path)
        if not 64 <= page <= 1 << 20 or xml_length > min(size, _MOST_XML):
            raise InputError("cannot be read as E57 (its header does not fit the file)", file=path)
        xml = _Pages(file, path, page).read(xml_at, xml_length)
    if b"<!DOCTYPE" in xml or b"<!ENTITY" in xml:
        raise InputError("cannot be read as E57 (its XML defines entities)", file=path)
    try:
        root = ElementTree.fromstring(xml.decode("utf-8"))
        scans = tuple(_scan(node, size) for node in root.findall("{*}data3D/*"))
    except (ElementTree.ParseError, UnicodeDecodeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"cannot be read as E57 ({reason(error, 'odd XML')})", file=path) from error
    if sum(scan.count * sum(column.bits for column in scan.columns) for scan in scans) > 8 * size:
        raise InputError("declares more points in its scans together than the file can hold", file=path)
    # a column of constant values takes no bits, so the file size does not bound it
    if (total := sum(8 * scan.count * len(scan.columns) for scan in scans)) > (most := may_expand_to(size)):
        raise InputError(f"expands to {total} bytes, more than the {most} allowed for it", file=path)
    fields: dict[str, np.dtype[Any]] = {}
    for scan in scans:
        for column in scan.columns:
            if column.name not in (*_CARTESIAN, *_SPHERICAL):
                fields.setdefault(_FIELDS.get(column.name, column.name), column.dtype)
    if len(scans) > 1:
        fields["scan"] = np.dtype(np.uint16)
    return E57Reader(path, CloudHeader(".e57", sum(s.count for s in scans), fields), page, scans)


# ---- the XML section ------------------------------------------------------------------------------------------


def _tag(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]


def _scan(node: ElementTree.Element, size: int) -> Scan:
    points = node.find("{*}points")
    if points is None:
        raise ValueError("a scan without points")
    columns = tuple(_column(child) for child in points.findall("{*}prototype/*"))
    names = {column.name for column in columns}
    if not (set(_CARTESIAN) <= names or set(_SPHERICAL) <= names):
        raise ValueError("a scan without coordinates")
    count, at = int(points.attrib["recordCount"]), int(points.attrib["fileOffset"])
    each = sum(column.bits for column in columns)  # bits, possibly 0
    if count < 0 or not 0 < at < size or count * max(each, 1) > 8 * size:
        raise ValueError(f"declares {count} points, more than the file can hold")
    w, x, y, z = (float(node.findtext(f"{{*}}pose/{{*}}rotation/{{*}}{n}") or n == "w") for n in "wxyz")
    translation = [float(node.findtext(f"{{*}}pose/{{*}}translation/{{*}}{n}") or 0) for n in "xyz"]
    rotation = np.array([
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ])  # fmt: skip
    return Scan(at, count, columns, rotation, np.array(translation))


def _column(node: ElementTree.Element) -> Column:
    attributes = node.attrib
    kind, double = attributes.get("type", ""), np.dtype(np.float64)
    if kind == "Float":
        single = attributes.get("precision", "double") == "single"
        dtype = np.dtype(np.float32) if single else double
        return Column(_tag(node), kind, dtype, 8 * dtype.itemsize)
    if kind not in ("Integer", "ScaledInteger"):
        raise ValueError(f"a field of type {kind[:20]!r}")
    low, high = int(attributes.get("minimum", -(1 << 63))), int(attributes.get("maximum", (1 << 63) - 1))
    bits = (high - low).bit_length()
    if high < low or low < -(1 << 63) or high >= 1 << 63:
        raise ValueError("a field whose range is empty or too wide")
    if kind == "ScaledInteger":
        scale, offset = float(attributes.get("scale", 1)), float(attributes.get("offset", 0))
        return Column(_tag(node), kind, double, bits, low, scale, offset)
    largest = low + (1 << bits) - 1
    ranges = ((choice, np.iinfo(choice)) for choice in (np.uint8, np.uint16, np.int32))
    fitting = (choice for choice, info in ranges if info.min <= low and largest <= info.max)
    return Column(_tag(node), kind, np.dtype(next(fitting, np.int64)), bits, low)


# ---- pages, packets and bits ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Pages:
    """A file in pages that each end with a checksum; offsets are physical, lengths do not count checksums."""

    file: IO[bytes]
    path: Path
    page: int

    def read(self, at: int, length: int) -> bytes:
        inner = self.page - _CHECKSUM
        number, inside = divmod(at, self.page)
        if at > self.path.stat().st_size:
            raise InputError("points beyond the end of the file", file=self.path)
        self.file.seek(number * self.page)
        raw = self.file.read(-(-(inside + length) // inner) * self.page)
        whole = len(raw) // self.page
        data = np.frombuffer(raw, np.uint8, whole * self.page).reshape(whole, self.page)[:, :inner].tobytes()
        if len(data) < inside + length:
            raise InputError("ends inside its data", file=self.path)
        return data[inside : inside + length]

    def after(self, at: int, length: int) -> int:
        """The offset ``length`` bytes after another."""
        number, inside = divmod(at, self.page)
        more, rest = divmod(inside + length, self.page - _CHECKSUM)
        return (number + more) * self.page + rest


def _records(pages: _Pages, scan: Scan, size: int) -> Iterator[dict[str, NDArray[Any]]]:
    """Columns of at most ``size`` records at a time, from the packets of a scan's section."""
    section, at = struct.unpack_from("<B15xQ", pages.read(scan.at, 32))
    if section != 1 or not 0 < at < pages.path.stat().st_size:
        raise InputError("cannot be read as E57 (no section of points where it says)", file=pages.path)
    streams = [bytearray() for _ in scan.columns]
    spent = [0] * len(streams)  # bits of each stream already decoded
    for done in range(0, scan.count, size):
        want = min(size, scan.count - done)
        while any(8 * len(s) - used < want * c.bits for s, used, c in zip(streams, spent, scan.columns, strict=True)):
            at = _next_packet(pages, at, streams)
        rows: dict[str, NDArray[Any]] = {}
        for number, column in enumerate(scan.columns):
            rows[column.name] = column.decode(bytes(streams[number]), spent[number], want)
            whole, spent[number] = divmod(spent[number] + want * column.bits, 8)
            del streams[number][:whole]
        yield rows


def _next_packet(pages: _Pages, at: int, streams: list[bytearray]) -> int:
    """Append a data packet to the streams, skip any other; returns the offset of the next packet."""
    kind, _, length_less_one, count = struct.unpack("<BBHH", pages.read(at, 6))
    length = length_less_one + 1
    if kind == 1:
        body = pages.read(at, length)
        place = 6 + 2 * count
        sizes = struct.unpack_from(f"<{count}H", body, 6) if place <= length else ()
        if count != len(streams) or place + sum(sizes) > length:
            raise InputError("cannot be read as E57 (a packet does not fit the scan's columns)", file=pages.path)
        for stream, size in zip(streams, sizes, strict=True):
            stream += body[place : place + size]
            place += size
    elif kind not in (0, 2):
        raise InputError("ends before its last point, or holds an unknown packet", file=pages.path)
    return pages.after(at, length)


def _unpack(data: bytes, first_bit: int, count: int, bits: int) -> NDArray[np.uint64]:
    """``count`` unsigned numbers of ``bits`` bits each, lowest bit first."""
    if bits == 0:
        return np.zeros(count, np.uint64)
    if first_bit % 8 == 0 and bits in (8, 16, 32, 64):
        return np.frombuffer(data, f"<u{bits // 8}", count, first_bit // 8).astype(np.uint64)
    out = np.zeros(count, np.uint64)
    raw = np.frombuffer(data, np.uint8)
    start = first_bit + np.arange(count, dtype=np.int64) * bits
    byte, shift = start // 8, (start % 8).astype(np.uint64)
    last = len(raw) - 1
    for step in range((bits + 7 + 7) // 8):  # the bytes a number may span
        part = raw[np.minimum(byte + step, last)].astype(np.uint64)
        move = 8 * step - shift.astype(np.int64)
        left, right = np.maximum(move, 0).astype(np.uint64), np.maximum(-move, 0).astype(np.uint64)
        out |= np.where(move < 64, (part << np.minimum(left, 63)) >> right, 0).astype(np.uint64)
    return out if bits == 64 else out & np.uint64((1 << bits) - 1)
