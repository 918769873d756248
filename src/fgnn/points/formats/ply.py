"""PLY: ascii and binary of both byte orders, any scalar vertex properties, other elements carried along.

Read here and not through a mesh library because every property must survive, in chunks, with its own type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader
from fgnn.points.formats.number_lines import records_of

_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8",
}  # fmt: skip
_NAMES = {
    "i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort",
    "i4": "int", "u4": "uint", "f4": "float", "f8": "double",
}  # fmt: skip
_ORDERS: dict[str, Literal["=", "<", ">"]] = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
_MAX_HEADER = 1 << 16
_COUNT = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, eq=False)
class PlyReader:
    """A PLY file in chunks."""

    path: Path
    header: CloudHeader
    dtype: np.dtype[Any]  # one vertex, as stored
    start: int  # the byte where the vertices begin

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        read = self._ascii if self.header.keep["format"] == "ascii" else self._binary
        with self.path.open("rb") as file:
            file.seek(self.start)
            for records in read(file, size):
                yield self._cloud(records)

    def _binary(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        left = self.header.count
        while left:
            want = min(size, left)
            data = file.read(want * self.dtype.itemsize)
            if len(data) < want * self.dtype.itemsize:
                got = self.header.count - left + len(data) // self.dtype.itemsize
                raise InputError(f"ends after {got} of {self.header.count} points", file=self.path)
            yield np.frombuffer(data, self.dtype)
            left -= want

    def _ascii(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        done = 0
        while done < self.header.count:
            want = min(size, self.header.count - done)
            lines = list(islice(file, want))
            if len(lines) < want:
                raise InputError(f"ends after {done + len(lines)} of {self.header.count} points", file=self.path)
            yield records_of(lines, self.dtype, self.path, f"vertices {done} to {done + want - 1}")
            done += want

    def _cloud(self, records: np.ndarray) -> Cloud:
        with np.errstate(invalid="ignore"):  # some bits of a float stand for a NaN that is told of when it is copied
            xyz = np.stack([records[axis].astype(np.float64) for axis in "xyz"], axis=1)
        fields = {n: records[n].astype(records[n].dtype.newbyteorder("=")) for n in self.header.fields}
        return Cloud(xyz, fields, self.header)


def open_reader(path: Path) -> PlyReader:
    """Read the header of a PLY file."""
    with path.open("rb") as file:
        lines = _header_lines(file, path)
        start = file.tell()
    order = "ascii"
    elements: list[tuple[str, int, list[list[str]]]] = []  # name, count, words of each property line
    comments = []
    for number, words in enumerate(lines, start=1):
        place = f"line {number}"
        if words[:1] in (["comment"], ["obj_info"]):
            comments.append(" ".join(words))
        elif words[0] == "format" and len(words) >= 2:
            if words[1] not in _ORDERS:
                raise InputError(
                    f"Expected a format among {', '.join(_ORDERS)} (got {words[1]!r})", file=path, place=place
                )
            order = words[1]
        elif words[0] == "element" and len(words) == 3 and _COUNT.fullmatch(words[2]):
            elements.append((words[1], int(words[2]), []))
        elif words[0] == "property" and elements and len(words) >= 3:
            elements[-1][2].append(words)
        elif words[0] not in ("ply", "end_header"):
            raise InputError(f"Expected a PLY header line (got {' '.join(words)[:60]!r})", file=path, place=place)
    if not elements or elements[0][0] != "vertex":
        raise InputError("Expected vertices as the first element of a point cloud", file=path)
    _, count, lines_of = elements[0]
    properties = [(words[-1], words[1]) for words in lines_of]
    unknown = [f"{kind} {name}" for name, kind in properties if kind not in _TYPES]
    if unknown:
        raise InputError(f"Expected scalar vertex properties (got {unknown[0]!r})", file=path)
    names = [name for name, _ in properties]
    if len(set(names)) != len(names):
        raise InputError("Expected each vertex property once (got one twice)", file=path)
    if not {"x", "y", "z"} <= set(names):
        raise InputError(f"Expected vertex properties x, y and z (got {', '.join(names) or 'none'})", file=path)
    dtype = np.dtype([(name, _ORDERS[order] + _TYPES[kind]) for name, kind in properties])
    least = count * (dtype.itemsize if order != "ascii" else 2 * len(properties))
    size = path.stat().st_size - start
    if least > size:
        raise InputError(f"declares {count} points but has only {size} bytes for them", file=path)
    stored = {name: np.dtype(_TYPES[kind]) for name, kind in properties}
    keep = {
        "format": order,
        "comments": comments,
        "stored": stored,
        "others": elements[1:],
        "source": path,
        "tail": start + count * dtype.itemsize if order != "ascii" else None,
        "skip": count,
        "start": start,
    }
    fields = {name: kind for name, kind in stored.items() if name not in AXES}
    return PlyReader(path, CloudHeader(".ply", count, fields, keep), dtype, start)


def _header_lines(file: IO[bytes], path: Path) -> list[list[str]]:
    lines: list[list[str]] = []
    if file.readline(16).strip() != b"ply":
        raise InputError("Expected a file that starts with 'ply'", file=path)
    lines.append(["ply"])
    while file.tell() < _MAX_HEADER:
        line = file.readline(_MAX_HEADER)
        if not line.endswith(b"\n"):
            break
        words = line.decode("latin-1").split()
        if words:
            lines.append(words)
        if words == ["end_header"]:
            return lines
    raise InputError("Expected 'end_header' at the end of the header", file=path)


def write(parts: Iterator[Cloud], path: Path, count: int) -> None:
    """Write PLY, binary unless the cloud came from an ascii file; other elements of its file are copied behind."""
    first = next(parts)
    keep = first.header.keep if first.header is not None and first.header.suffix == ".ply" else {}
    order = keep.get("format", "binary_little_endian")
    stored: dict[str, np.dtype[Any]] = {axis: np.dtype("f8") for axis in "xyz"}
    if keep:  # the file's own order of properties and its own type of coordinate
        stored = {n: kind for n, kind in keep["stored"].items() if n in AXES or n in first.fields}
    for name, values in first.fields.items():
        stored[name] = _storable(values.dtype)
    dtype = np.dtype([(name, kind.newbyteorder(_ORDERS[order])) for name, kind in stored.items()])
    lines = ["ply", f"format {order} 1.0", *keep.get("comments", []), f"element vertex {count}"]
    lines += [f"property {_NAMES[kind.str[1:]]} {name}" for name, kind in stored.items()]
    for element, number, properties in keep.get("others", []):
        lines.append(f"element {element} {number}")
        lines += [" ".join(words) for words in properties]
    with atomic_write(path, "wb") as out:
        out.write(("\n".join([*lines, "end_header"]) + "\n").encode("latin-1"))
        for part in chain([first], parts):
            records = np.empty(len(part), dtype)
            for name in stored:
                records[name] = part.xyz[:, "xyz".index(name)] if name in AXES else part.fields[name]
            if order == "ascii":
                rows = zip(*(records[name].tolist() for name in stored), strict=True)
                out.write("".join(" ".join(map(_shortest, row)) + "\n" for row in rows).encode())
            else:
                out.write(records.tobytes())
        if keep.get("others"):
            _copy_tail(out, keep)


def _copy_tail(out: IO[bytes], keep: Any) -> None:
    with keep["source"].open("rb") as file:
        if keep["tail"] is None:
            file.seek(keep["start"])
            for _ in islice(file, keep["skip"]):
                pass
        else:
            file.seek(keep["tail"])
        while block := file.read(1 << 20):
            out.write(block)


def _storable(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The PLY type that holds a field: 64-bit integers and booleans have none of their own."""
    if kind == np.bool_:
        return np.dtype("u1")
    if kind.str[1:] in _NAMES:
        return np.dtype(kind.str[1:])
    return np.dtype("f8")


def _shortest(value: float | int) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)
