"""PCD in its three encodings (ascii, binary, binary_compressed).

Read here, so that no size in a file is believed before it is held against the file; written through pypcd4.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from fgnn.errors import InputError, need
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader
from fgnn.points.formats.number_lines import records_of

_MAX_HEADER = 1 << 14
_TYPES = {
    ("F", "4"): "<f4", ("F", "8"): "<f8",
    **{("U", str(n)): f"<u{n}" for n in (1, 2, 4, 8)}, **{("I", str(n)): f"<i{n}" for n in (1, 2, 4, 8)},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PcdReader:
    """A PCD file; the compressed form is read whole, because it stores column after column, the others in chunks."""

    path: Path
    header: CloudHeader
    dtype: np.dtype[Any]  # one point, as stored
    start: int  # the byte where the points begin

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        read = {"ascii": self._ascii, "binary": self._binary, "binary_compressed": self._compressed}
        with self.path.open("rb") as file:
            file.seek(self.start)
            for rows in read[self.header.keep["encoding"]](file, size):
                with np.errstate(invalid="ignore"):  # some bits of a float stand for a NaN that is told of when copied
                    xyz = np.stack([rows[axis].astype(np.float64) for axis in "xyz"], axis=1)
                yield Cloud(xyz, {name: np.ascontiguousarray(rows[name]) for name in self.header.fields}, self.header)

    def _binary(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        for done in range(0, self.header.count, size):
            want = min(size, self.header.count - done)
            data = file.read(want * self.dtype.itemsize)
            if len(data) < want * self.dtype.itemsize:
                self._ends(done + len(data) // self.dtype.itemsize)
            yield np.frombuffer(data, self.dtype)

    def _ascii(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        for done in range(0, self.header.count, size):
            want = min(size, self.header.count - done)
            lines = list(islice((line for line in file if line.strip()), want))
            if len(lines) < want:
                self._ends(done + len(lines))
            yield records_of(lines, self.dtype, self.path, f"points {done} to {done + want - 1}")

    def _compressed(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        """Two lengths, then LZF of all values of the first field, then of the second, and so on."""
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
        at = 0
        for name in self.dtype.names or ():
            kind = self.dtype[name]
            rows[name] = np.frombuffer(plain, kind, count, at)
            at += count * kind.itemsize
        for begin in range(0, count, size):
            yield rows[begin : begin + size]

    def _ends(self, got: int) -> NoReturn:
        raise InputError(f"ends after {got} of {self.header.count} points", file=self.path)


def open_reader(path: Path) -> PcdReader:
    """Read the header of a PCD file; sizes that the file cannot hold are refused here."""
    with path.open("rb") as file:
        head = file.read(_MAX_HEADER)
    match = re.search(rb"^DATA[ \t]+(\S+)[ \t]*\r?\n", head, re.MULTILINE)
    if match is None:
        raise InputError("Expected a PCD header that ends with DATA", file=path)
    entries: dict[str, list[str]] = {}
    for line in head[: match.end()].decode("latin-1").splitlines():
        words = line.split()
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
    if not {"x", "y", "z"} <= set(names):
        raise InputError(f"Expected fields x, y and z (got {', '.join(names)})", file=path)
    if any(c != 1 for c in counts) or len(set(names)) != len(names) or len(dtypes) != len(names):
        raise InputError("Expected fields of one value each, each named once", file=path)
    dtype = np.dtype(list(zip(names, dtypes, strict=True)))
    size = path.stat().st_size - match.end()
    # ascii takes two bytes a value; LZF packs at most about 90 to 1
    least = {"ascii": 2 * len(names), "binary": dtype.itemsize, "binary_compressed": dtype.itemsize / 100}[encoding]
    if count < 0 or least * count > size + 2:
        raise InputError(f"declares {count} points but has only {size} bytes for them", file=path)
    fields = {name: kind for name, kind in zip(names, dtypes, strict=True) if name not in AXES}
    coordinate = {name: kind for name, kind in zip(names, dtypes, strict=True) if name in AXES}
    keep: dict[str, Any] = {"encoding": encoding, "order": names, "coordinate": coordinate}
    return PcdReader(path, CloudHeader(".pcd", count, fields, keep), dtype, match.end())


def write(parts: Iterator[Cloud], path: Path, count: int) -> None:
    """Write PCD, binary unless the cloud came from another encoding."""
    pypcd4 = need("pypcd4")
    clouds = list(parts)
    first = clouds[0]
    keep = first.header.keep if first.header is not None and first.header.suffix == ".pcd" else {}
    order = [n for n in keep.get("order", "xyz") if n in AXES or n in first.fields]
    order += [n for n in first.fields if n not in order]
    columns, types = [], []
    for name in order:
        if name in AXES:
            kind = keep.get("coordinate", {}).get(name, np.dtype(np.float64))
            columns.append(np.concatenate([c.xyz[:, "xyz".index(name)] for c in clouds]).astype(kind))
        else:
            column = np.concatenate([c.fields[name] for c in clouds])
            columns.append(column.astype(np.uint8) if column.dtype == np.bool_ else column)
        types.append(columns[-1].dtype.type)
    cloud = pypcd4.PointCloud.from_points(columns, tuple(order), tuple(types))
    encoding = pypcd4.Encoding(keep.get("encoding", "binary"))
    with atomic_write(path, "wb") as out:
        cloud.save(out, encoding=encoding)
