"""PLY: ascii and binary of both byte orders, any scalar vertex properties; other elements are copied.

Mesh libraries neither keep every property with its type nor read in chunks, so the format is parsed here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, Cloud, CloudHeader
from fgnn.points.formats.records import RecordReader, as_lines, column_order, records
from fgnn.points.formats.storable import check_values, check_word, plain_kind

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


class PlyReader(RecordReader):
    """A PLY file in chunks."""

    def records(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        return (self.text if self.header.keep["format"] == "ascii" else self.binary)(file, size)


def open_reader(path: Path) -> PlyReader:
    """Read the header of a PLY file."""
    with path.open("rb") as file:
        order, comments, elements = _parse_header(_header_lines(file, path), path)
        start = file.tell()
    if not elements or elements[0][0] != "vertex":
        raise InputError("Expected vertices as the first element of a point cloud", file=path)
    _, count, properties = elements[0]
    stored = _vertex_types([(words[-1], words[1]) for words in properties], path)
    dtype = np.dtype([(name, kind.newbyteorder(_ORDERS[order])) for name, kind in stored.items()])
    binary = order != "ascii"
    least = count * (dtype.itemsize if binary else 2 * len(stored))
    size = path.stat().st_size - start
    if least > size:
        raise InputError(f"declares {count} points but has only {size} bytes for them", file=path)
    keep = {
        "format": order,
        "comments": comments,
        "ply types": stored,
        "others": elements[1:],
        "source": path,
        # where the other elements begin: a byte, and lines after it
        "tail": (start + count * dtype.itemsize, 0) if binary else (start, count),
    }
    fields = {name: kind for name, kind in stored.items() if name not in AXES}
    return PlyReader(path, CloudHeader(".ply", count, fields, keep), dtype, start)


def _parse_header(lines: list[list[str]], path: Path) -> tuple[str, list[str], list[tuple[str, int, list[list[str]]]]]:
    """The byte order, the comments, and the name, count and property lines of each element."""
    order, comments = "ascii", list[str]()
    elements: list[tuple[str, int, list[list[str]]]] = []
    for number, words in enumerate(lines, start=1):
        place = f"line {number}"
        if words[0] in ("comment", "obj_info"):
            comments.append(" ".join(words))
        elif words[0] == "format" and len(words) >= 2:
            if words[1] not in _ORDERS:
                what = f"Expected a format among {', '.join(_ORDERS)} (got {words[1]!r})"
                raise InputError(what, file=path, place=place)
            order = words[1]
        elif words[0] == "element" and len(words) == 3 and _COUNT.fullmatch(words[2]):
            elements.append((words[1], int(words[2]), []))
        elif words[0] == "property" and elements and len(words) >= 3:
            elements[-1][2].append(words)
        elif words[0] not in ("ply", "end_header"):
            raise InputError(f"Expected a PLY header line (got {' '.join(words)[:60]!r})", file=path, place=place)
    return order, comments, elements


def _vertex_types(properties: list[tuple[str, str]], path: Path) -> dict[str, np.dtype[Any]]:
    """The type of each vertex property, in the order they are stored."""
    unknown = [f"{kind} {name}" for name, kind in properties if kind not in _TYPES]
    if unknown:
        raise InputError(f"Expected scalar vertex properties (got {unknown[0]!r})", file=path)
    stored = {name: np.dtype(_TYPES[kind]) for name, kind in properties}
    if len(stored) != len(properties):
        raise InputError("Expected each vertex property once (got one twice)", file=path)
    if not set(AXES) <= set(stored):
        raise InputError(f"Expected vertex properties x, y and z (got {', '.join(stored) or 'none'})", file=path)
    return stored


def _header_lines(file: IO[bytes], path: Path) -> list[list[str]]:
    if file.readline(16).strip() != b"ply":
        raise InputError("Expected a file that starts with 'ply'", file=path)
    lines = [["ply"]]
    while file.tell() < _MAX_HEADER:
        line = file.readline(_MAX_HEADER)
        if not line.endswith(b"\n"):
            break
        words = [word.decode("utf-8", "surrogateescape") for word in line.split()]
        if words:
            lines.append(words)
        if words == ["end_header"]:
            return lines
    raise InputError("Expected 'end_header' at the end of the header", file=path)


def check(first: Cloud, part: Cloud, path: Path) -> None:
    """Names are words, and the format has no 64-bit integers."""
    for name, values in part.fields.items():
        check_word(name, path)
        check_values(name, values, plain_kind(values.dtype, wide_integers=False), path)


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write PLY, binary unless the cloud came from an ascii file; other elements of that file are appended."""
    keep = first.keep
    order = keep.get("format", "binary_little_endian")
    original = keep.get("ply types", dict.fromkeys(AXES, np.dtype("f8")))
    stored: dict[str, np.dtype[Any]] = {
        name: original[name] if name in AXES else plain_kind(first.fields[name].dtype, wide_integers=False)
        for name in column_order(first, original)
    }
    dtype = np.dtype([(name, kind.newbyteorder(_ORDERS[order])) for name, kind in stored.items()])
    lines = ["ply", f"format {order} 1.0", *keep.get("comments", []), f"element vertex {count}"]
    lines += [f"property {_NAMES[kind.str[1:]]} {name}" for name, kind in stored.items()]
    for element, number, properties in keep.get("others", []):
        lines.append(f"element {element} {number}")
        lines += [" ".join(words) for words in properties]
    with atomic_write(path, "wb") as out:
        out.write(("\n".join([*lines, "end_header"]) + "\n").encode("utf-8", "surrogateescape"))
        for part in parts:
            rows = records(part, dtype)
            out.write(as_lines(rows) if order == "ascii" else rows.tobytes())
        if keep.get("others"):
            start, vertices = keep["tail"]
            with keep["source"].open("rb") as file:
                file.seek(start)
                for _ in islice(file, vertices):
                    pass
                shutil.copyfileobj(file, out)
