"""XYZ, TXT and CSV: one point a line, with or without a header line; spaces, tabs, commas or semicolons between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader

# What the columns of a file without a header line usually are.
_USUAL = {
    3: ["x", "y", "z"],
    4: ["x", "y", "z", "intensity"],
    6: ["x", "y", "z", "red", "green", "blue"],
    7: ["x", "y", "z", "red", "green", "blue", "label"],
}
_AXES = {"x": "x", "y": "y", "z": "z", "//x": "x", "#x": "x", "easting": "x", "northing": "y", "height": "z"}
_MAX_LINE = 1 << 16


@dataclass(frozen=True, eq=False)
class TextReader:
    """A text cloud in chunks."""

    path: Path
    header: CloudHeader

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        keep = self.header.keep
        names: list[str] = keep["names"]
        with self.path.open("r", encoding="utf-8", errors="replace") as file:
            for _ in range(keep["skip"]):
                file.readline()
            done = keep["skip"]
            while lines := list(islice(file, size)):
                kept = [line for line in lines if line.strip() and not line.lstrip().startswith(("#", "//"))]
                if kept:
                    yield self._cloud(self._rows(kept, names, done), names)
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
                    shown = line.strip()[:40]
                    raise InputError(
                        f"Expected {len(names)} numbers (got {shown!r})", file=self.path, place=f"line {number}"
                    ) from error
            raise InputError(f"Expected {len(names)} numbers a line", file=self.path) from error
        return rows

    def _cloud(self, rows: NDArray[np.float64], names: list[str]) -> Cloud:
        columns = {name: rows[:, c] for c, name in enumerate(names)}
        xyz = np.stack([columns.pop(axis) for axis in "xyz"], axis=1)
        return Cloud(xyz, columns, self.header)


def open_reader(path: Path) -> TextReader:
    """Find the separator, the header line and the columns."""
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
        nothing = {"names": ["x", "y", "z"], "skip": skip, "delimiter": None, "head": False}
        return TextReader(path, CloudHeader(path.suffix.lower(), 0, {}, nothing))
    delimiter = next((d for d in (",", ";") if d in lines[-1]), None)
    head = not _numbers(lines[0], delimiter)
    if head:
        names = [_AXES.get(n.strip().lower(), n.strip()) for n in _split(lines[0].lstrip("#/ "), delimiter)]
        skip += 1
    else:
        width = len(_split(lines[0], delimiter))
        names = _USUAL.get(width, ["x", "y", "z", *(f"column_{c}" for c in range(3, width))])
    if len(set(names)) != len(names) or not {"x", "y", "z"} <= set(names):
        raise InputError(
            f"Expected columns x, y and z (got {', '.join(names)[:80]!r})", file=path, place=f"line {skip}"
        )
    keep = {"names": names, "skip": skip, "delimiter": delimiter, "head": head}
    fields = {name: np.dtype(np.float64) for name in names if name not in AXES}
    with path.open("rb") as raw:
        count = sum(block.count(b"\n") for block in iter(lambda: raw.read(1 << 20), b""))
    return TextReader(path, CloudHeader(path.suffix.lower(), max(0, count - skip), fields, keep))


def write(parts: Iterator[Cloud], path: Path, count: int) -> None:
    """Write one point a line, each number as short as it can be without loss."""
    first = next(parts)
    keep = first.header.keep if first.header is not None and "names" in first.header.keep else {}
    old = [n for n in keep.get("names", ["x", "y", "z"]) if n in AXES or n in first.fields]
    names = old + [n for n in first.fields if n not in old]
    csv = path.suffix.lower() == ".csv"
    delimiter = keep.get("delimiter") or ("," if csv else " ")
    with atomic_write(path) as out:
        if keep.get("head") or csv or names != _USUAL.get(len(names)):
            out.write(("" if csv or keep.get("head") else "# ") + delimiter.join(names) + "\n")
        for part in chain([first], parts):
            columns = [_texts(part.xyz[:, "xyz".index(n)] if n in AXES else part.fields[n]) for n in names]
            out.writelines(delimiter.join(row) + "\n" for row in zip(*columns, strict=True))


def _texts(values: NDArray[np.float64]) -> list[str]:
    if np.issubdtype(values.dtype, np.floating) and np.isfinite(values).all() and (values == np.round(values)).all():
        return [str(int(v)) for v in values.tolist()]
    if values.dtype == np.float32:  # shortest digits of the float32 itself, not of its float64 image
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
    return {"x", "y", "z"} <= words
