"""XYZ, TXT and CSV: one point per line, separated by spaces, tabs, commas or semicolons, header line optional."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader
from fgnn.points.formats.records import column_order

# Usual columns of a file without a header line, by their number.
_USUAL = {
    3: [*AXES],
    4: [*AXES, "intensity"],
    6: [*AXES, "red", "green", "blue"],
    7: [*AXES, "red", "green", "blue", "label"],
}
_AXES = {"x": "x", "y": "y", "z": "z", "//x": "x", "#x": "x", "easting": "x", "northing": "y", "height": "z"}
_MAX_LINE = 1 << 16


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
                    columns = {name: rows[:, c] for c, name in enumerate(names)}
                    yield Cloud(np.stack([columns.pop(axis) for axis in AXES], axis=1), columns, self.header)
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
        names = [_AXES.get(n.strip().lower(), n.strip()) for n in _split(lines[0].lstrip("#/ "), delimiter)]
        skip += 1
    else:
        width = len(_split(lines[0], delimiter))
        names = _USUAL.get(width, [*AXES, *(f"column_{c}" for c in range(3, width))])
    if len(set(names)) != len(names) or not set(AXES) <= set(names):
        what = f"Expected columns x, y and z (got {', '.join(names)[:80]!r})"
        raise InputError(what, file=path, place=f"line {skip}")
    keep = {"names": names, "skip": skip, "delimiter": delimiter, "head": head}
    fields = {name: np.dtype(np.float64) for name in names if name not in AXES}
    with path.open("rb") as raw:
        count = sum(block.count(b"\n") for block in iter(lambda: raw.read(1 << 20), b""))
    return TextReader(path, CloudHeader(path.suffix.lower(), max(0, count - skip), fields, keep))


def write(first: Cloud, parts: Iterable[Cloud], path: Path, count: int) -> None:
    """Write one point per line, each number with the fewest digits that preserve it."""
    keep = first.keep
    names = column_order(first, keep.get("names", AXES))
    is_csv = path.suffix.lower() == ".csv"
    delimiter = keep.get("delimiter") or ("," if is_csv else " ")
    with atomic_write(path) as out:
        if keep.get("head") or is_csv or names != _USUAL.get(len(names)):
            out.write(("" if is_csv or keep.get("head") else "# ") + delimiter.join(names) + "\n")
        for part in parts:
            columns = [_texts(part.column(name)) for name in names]
            out.writelines(delimiter.join(row) + "\n" for row in zip(*columns, strict=True))


def _texts(values: NDArray[np.float64]) -> list[str]:
    if np.issubdtype(values.dtype, np.floating) and np.isfinite(values).all() and (values == np.round(values)).all():
        return [str(int(v)) for v in values.tolist()]
    if values.dtype == np.float32:  # the fewest digits of the float32, not of its float64 value
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
