"""XYZ, TXT and CSV: one point per line, separated by spaces, tabs, commas or semicolons, header line optional."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader
from fgnn.points.formats.records import column_order
from fgnn.points.formats.storable import check_values, refuse

# Usual columns of a file without a header line, by their number.
_USUAL = {
    3: [*AXES],
    4: [*AXES, "intensity"],
    6: [*AXES, "red", "green", "blue"],
    7: [*AXES, "red", "green", "blue", "label"],
}
_AXES = {"x": "x", "y": "y", "z": "z", "//x": "x", "#x": "x", "easting": "x", "northing": "y", "height": "z"}
_MAX_LINE = 1 << 16
# Integers of 16 digits or more may lie beyond 2^53, where float64 rounds; longer ones fit no integer type.
_LARGE = re.compile(rb"(?<![0-9.eE])[0-9]{16,}(?![0-9.eE])")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_LONGEST_INTEGER = 64


@dataclass(frozen=True, eq=False)
class TextReader:
    """A text cloud in chunks."""

    path: Path
    header: CloudHeader

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        names, done = self.header.keep["names"], self.header.keep["skip"]
        with self.path.open("r", encoding="utf-8", errors="replace") as file:
            for _ in range(done):
                file.readline()
            while lines := list(islice(file, size)):
                points = [line for line in lines if line.strip() and not line.lstrip().startswith(("#", "//"))]
                if points:
                    rows = self._rows(points, names, done)
                    columns: dict[str, NDArray[Any]] = {name: rows[:, c] for c, name in enumerate(names)}
                    xyz = np.stack([columns.pop(axis) for axis in AXES], axis=1)
                    for name, kind in self.header.fields.items():
                        if kind.kind in "iu":
                            columns[name] = self._integers(points, names.index(name), kind)
                    yield Cloud(xyz, columns, self.header)
                done += len(lines)

    def _rows(self, lines: list[str], names: list[str], done: int) -> NDArray[np.float64]:
        delimiter = self.header.keep["delimiter"]
        try:
            rows = np.loadtxt(lines, dtype=np.float64, delimiter=delimiter, ndmin=2, comments=None)
            if rows.shape[1] != len(names):
                raise ValueError("another number of columns")
        except ValueError as error:
            for number, line in enumerate(lines, start=done + 1):
                if not _numbers(line, delimiter) or len(_split(line, delimiter)) != len(names):
                    what = f"Expected {len(names)} numbers (got {line.strip()[:40]!r})"
                    raise InputError(what, file=self.path, place=f"line {number}") from error
            raise InputError(f"Expected {len(names)} numbers a line", file=self.path) from error
        return rows

    def _integers(self, lines: list[str], column: int, kind: np.dtype[Any]) -> NDArray[Any]:
        words = [_split(line, self.header.keep["delimiter"])[column] for line in lines]
        return np.array([int(word) for word in words], dtype=kind)


def open_reader(path: Path) -> TextReader:
    """Detect the separator, the header line and the columns."""
    skip, lines = 0, list[str]()
    with path.open("r", encoding="utf-8", errors="replace") as file:
        while len(lines) < 2:
            line = file.readline(_MAX_LINE)
            if not line:
                break
            if len(line) >= _MAX_LINE:
                raise InputError("Expected lines of numbers (got one very long line)", file=path)
            blank = not line.strip() or (line.lstrip().startswith(("#", "//")) and not _names(line))
            if blank and not lines:
                skip += 1
            else:
                lines.append(line)
    if not lines:
        nothing = {"names": [*AXES], "skip": skip, "delimiter": None, "head": False}
        return TextReader(path, CloudHeader(path.suffix.lower(), 0, {}, nothing))
    delimiter = next((d for d in (",", ";") if d in lines[-1]), None)
    head = not _numbers(lines[0], delimiter)
    if head:
        names = _column_names([word.strip() for word in _split(lines[0].lstrip("#/ "), delimiter)])
        skip += 1
    else:
        width = len(_split(lines[0], delimiter))
        names = _USUAL.get(width, [*AXES, *(f"column_{c}" for c in range(3, width))])
    if len(set(names)) != len(names) or not set(AXES) <= set(names):
        what = f"Expected columns x, y and z (got {', '.join(names)[:80]!r})"
        raise InputError(what, file=path, place=f"line {skip}")
    keep = {"names": names, "skip": skip, "delimiter": delimiter, "head": head}
    count, large = _survey(path)
    kinds = _integer_kinds(path, keep) if large else {}
    fields = {name: kinds.get(name, np.dtype(np.float64)) for name in names if name not in AXES}
    return TextReader(path, CloudHeader(path.suffix.lower(), max(0, count - skip), fields, keep))


def _column_names(words: list[str]) -> list[str]:
    """The names of the columns; x, y and z may be spelled otherwise if they are missing."""
    renamed = [_AXES.get(word.lower(), word) for word in words]
    return words if set(AXES) <= set(words) else renamed


def _survey(path: Path) -> tuple[int, bool]:
    """The number of lines, and whether there may be integers that float64 rounds."""
    count, large, tail = 0, False, b"\n"
    with path.open("rb") as raw:
        while block := raw.read(1 << 20):
            count += block.count(b"\n")
            large = large or _LARGE.search(tail + block + b"\n") is not None
            tail = block[-_LONGEST_INTEGER:]
    return count, large


def _integer_kinds(path: Path, keep: dict[str, Any]) -> dict[str, np.dtype[Any]]:
    """The columns of integers that float64 would round, each with the integer type that holds them."""
    names, delimiter = keep["names"], keep["delimiter"]
    low, high = [0] * len(names), [0] * len(names)
    whole = [name not in AXES for name in names]
    with path.open("r", encoding="utf-8", errors="replace") as file:
        for line in islice(file, keep["skip"], None):
            for c, word in enumerate(_split(line, delimiter)[: len(names)]):
                if whole[c] and _INTEGER.fullmatch(word.strip()):
                    low[c], high[c] = min(low[c], int(word)), max(high[c], int(word))
                else:
                    whole[c] = whole[c] and (not line.strip() or line.lstrip().startswith(("#", "//")))
    kinds: dict[str, np.dtype[Any]] = {}
    for c, name in enumerate(names):
        if whole[c] and max(high[c], -low[c]) > 2**53:
            for kind in (np.uint64, np.int64):
                if np.iinfo(kind).min <= low[c] and high[c] <= np.iinfo(kind).max:
                    kinds[name] = np.dtype(kind)
    return kinds


def check(first: Cloud, part: Cloud, path: Path) -> None:
    """Names must not hold separators, line ends or comments; numbers are text, so they only have to fit float64."""
    names = column_order(first, first.keep.get("names", AXES))
    for name, values in part.fields.items():
        plain = name.encode("utf-8", "replace").decode() == name and name.strip() == name != ""
        if not plain or set(name) & set(",;\n\r\0") or (not _is_csv(first, path) and name.split() != [name]):
            raise refuse(name, "its name is empty, or has a separator or a line end", path)
        if names[0] == name and name[0] in "#/":
            raise refuse(name, "the first name must not look like a comment", path)
        check_values(name, values, values.dtype if values.dtype.kind in "iu" else np.dtype(np.float64), path)


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write one point per line, each number with the fewest digits that preserve it."""
    keep = first.keep
    names = column_order(first, keep.get("names", AXES))
    is_csv = path.suffix.lower() == ".csv"
    delimiter = keep.get("delimiter") or ("," if is_csv else " ")
    with atomic_write(path) as out:
        if keep.get("head") or is_csv or not count or names != _USUAL.get(len(names)):
            out.write(("" if is_csv or keep.get("head") else "# ") + delimiter.join(names) + "\n")
        for part in parts:
            columns = [_texts(part.column(name)) for name in names]
            out.writelines(delimiter.join(row) + "\n" for row in zip(*columns, strict=True))


def _is_csv(first: Cloud, path: Path) -> bool:
    """Whether blanks do not separate columns."""
    return path.suffix.lower() == ".csv" or first.keep.get("delimiter") is not None


def _texts(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind == "b":
        values = values.astype(np.uint8)
    if np.issubdtype(values.dtype, np.floating) and np.isfinite(values).all() and (values == np.round(values)).all():
        return [str(int(v)) for v in values.tolist()]
    if values.dtype.kind == "f" and values.dtype.itemsize < 8:  # the fewest digits of its own type, not of float64
        return [str(v) for v in values]
    return [str(v) for v in values.tolist()]


def _split(line: str, delimiter: str | None) -> list[str]:
    return line.strip().split(delimiter)


def _numbers(line: str, delimiter: str | None) -> bool:
    try:
        return bool([float(word) for word in _split(line, delimiter)])
    except ValueError:
        return False


def _names(line: str) -> bool:
    words = {w.strip().lower() for w in line.replace(",", " ").replace(";", " ").lstrip("#/ ").split()}
    return set(AXES) <= words
