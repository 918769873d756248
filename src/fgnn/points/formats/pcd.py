"""PCD in its three encodings (ascii, binary, binary_compressed); sizes are checked before memory is allocated."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from fgnn.errors import InputError, need
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, Cloud, CloudHeader
from fgnn.points.formats.records import RecordReader, as_lines, column_order, records
from fgnn.points.formats.storable import check_values, check_word, plain_kind

_MAX_HEADER = 1 << 14
_TYPES = {
    ("F", "4"): "<f4", ("F", "8"): "<f8",
    **{("U", str(n)): f"<u{n}" for n in (1, 2, 4, 8)}, **{("I", str(n)): f"<i{n}" for n in (1, 2, 4, 8)},
}  # fmt: skip


class PcdReader(RecordReader):
    """A PCD file in chunks, except that the compressed form, which stores whole columns, is read at once."""

    def records(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        encoding = self.header.keep["encoding"]
        if encoding == "ascii":
            return self.text((line for line in file if line.strip()), size)
        return (self.binary if encoding == "binary" else self._compressed)(file, size)

    def _compressed(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        """Two lengths, then one LZF block: all values of the first field, then of the second, and so on."""
        count, lzf = self.header.count, need("lzf")
        lengths = file.read(8)
        packed, unpacked = struct.unpack("<II", lengths) if len(lengths) == 8 else (0, 0)
        data = file.read(packed)
        if unpacked != count * self.dtype.itemsize or len(data) < packed:
            what = f"Expected {count * self.dtype.itemsize} bytes in {packed} (got {unpacked} in {len(data)})"
            raise InputError(what, file=self.path, place="compressed points")
        try:
            plain = lzf.decompress(data, unpacked) if unpacked else b""
        except ValueError:
            plain = None
        if plain is None or len(plain) != unpacked:
            raise InputError("Expected points packed by LZF (got something else)", file=self.path)
        rows = np.empty(count, self.dtype)
        offset = 0
        for name in self.dtype.names or ():
            kind = self.dtype[name]
            rows[name] = np.frombuffer(plain, kind, count, offset)
            offset += count * kind.itemsize
        for start in range(0, count, size):
            yield rows[start : start + size]


def open_reader(path: Path) -> PcdReader:
    """Read the header of a PCD file; reject sizes that the file cannot hold."""
    with path.open("rb") as file:
        head = file.read(_MAX_HEADER)
    match = re.search(rb"^DATA[ \t]+(\S+)[ \t]*\r?\n", head, re.MULTILINE)
    if match is None:
        raise InputError("Expected a PCD header that ends with DATA", file=path)
    entries: dict[str, list[str]] = {}
    for line in head[: match.end()].splitlines():
        words = [word.decode("utf-8", "surrogateescape") for word in line.split()]
        if words and not words[0].startswith("#"):
            entries[words[0].upper()] = words[1:]
    try:
        names, sizes, kinds = entries["FIELDS"], entries["SIZE"], entries["TYPE"]
        counts = [int(c) for c in entries.get("COUNT", ["1"] * len(names))]
        count = int(entries["POINTS"][0])
        dtypes = [np.dtype(_TYPES[k.upper(), s]) for k, s in zip(kinds, sizes, strict=True)]
    except (KeyError, ValueError, IndexError) as error:
        raise InputError("Expected FIELDS, SIZE, TYPE and POINTS that fit together", file=path) from error
    encoding = match.group(1).decode("latin-1")
    if encoding not in ("ascii", "binary", "binary_compressed"):
        raise InputError(f"Expected DATA ascii, binary or binary_compressed (got {encoding!r})", file=path)
    if not set(AXES) <= set(names):
        raise InputError(f"Expected fields x, y and z (got {', '.join(names)})", file=path)
    if any(c != 1 for c in counts) or len(set(names)) != len(names) or len(dtypes) != len(names):
        raise InputError("Expected fields of one value each, each named once", file=path)
    dtype = np.dtype(list(zip(names, dtypes, strict=True)))
    size = path.stat().st_size - match.end()
    # text takes at least two bytes per value; LZF compresses at most about 90 to 1
    least = {"ascii": 2 * len(names), "binary": dtype.itemsize, "binary_compressed": dtype.itemsize / 100}[encoding]
    if count < 0 or least * count > size + 2:
        raise InputError(f"declares {count} points but has only {size} bytes for them", file=path)
    stored = dict(zip(names, dtypes, strict=True))
    fields = {name: kind for name, kind in stored.items() if name not in AXES}
    keep: dict[str, Any] = {"encoding": encoding, "pcd types": stored}
    if "VIEWPOINT" in entries:
        keep["viewpoint"] = " ".join(entries["VIEWPOINT"])
    rows = [(entries.get(key) or [""])[0] for key in ("WIDTH", "HEIGHT")]
    if all(word.isdecimal() and len(word) < 19 for word in rows) and int(rows[0]) * int(rows[1]) == count:
        keep["image"] = int(rows[0]), int(rows[1])  # an organised cloud
    return PcdReader(path, CloudHeader(".pcd", count, fields, keep), dtype, match.end())


def check(first: Cloud, part: Cloud, path: Path) -> None:
    """Names are words."""
    for name, values in part.fields.items():
        check_word(name, path)
        check_values(name, values, plain_kind(values.dtype), path)


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write PCD, binary unless the cloud came from another encoding."""
    original = first.keep.get("pcd types", dict.fromkeys(AXES, np.dtype("<f8")))
    types = {
        name: original[name] if name in AXES else plain_kind(first.fields[name].dtype)
        for name in column_order(first, original)
    }
    dtype = np.dtype([(name, kind.newbyteorder("<")) for name, kind in types.items()])
    encoding = first.keep.get("encoding", "binary")
    width, height = first.keep.get("image", (count, 1))
    if width * height != count:  # not all points of the image
        width, height = count, 1
    lines = {
        "VERSION": "0.7", "FIELDS": " ".join(types), "SIZE": " ".join(str(kind.itemsize) for kind in types.values()),
        "TYPE": " ".join(kind.kind.upper() for kind in types.values()), "COUNT": " ".join("1" for _ in types),
        "WIDTH": width, "HEIGHT": height, "VIEWPOINT": first.keep.get("viewpoint", "0 0 0 1 0 0 0"), "POINTS": count,
        "DATA": encoding,
    }  # fmt: skip
    with atomic_write(path, "wb") as out:
        out.write("".join(f"{key} {value}\n" for key, value in lines.items()).encode("utf-8", "surrogateescape"))
        if encoding == "binary_compressed":
            out.write(_compressed_columns(np.concatenate([records(part, dtype) for part in parts])))
            return
        for part in parts:
            rows = records(part, dtype)
            out.write(as_lines(rows) if encoding == "ascii" else rows.tobytes())


def _compressed_columns(rows: np.ndarray) -> bytes:
    """Two lengths and one LZF block of whole columns."""
    plain = b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in rows.dtype.names or ())
    packed = need("lzf").compress(plain, 2 * len(plain) + 64) if plain else b""
    return struct.pack("<II", len(packed), len(plain)) + packed
