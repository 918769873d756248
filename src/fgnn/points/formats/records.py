"""Points as records of named numbers, in binary or one per line of text: what PLY and PCD share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fgnn.errors import InputError
from fgnn.points.cloud import AXES, CHUNK, Cloud, CloudHeader

# From here on float64 rounds integers.
_ROUNDED = 2.0**53


@dataclass(frozen=True, eq=False)
class RecordReader:
    """A file of records behind a header, read in chunks."""

    path: Path
    header: CloudHeader
    dtype: np.dtype[Any]  # one point, as stored
    start: int  # byte offset of the points

    def chunks(self, size: int = CHUNK) -> Iterator[Cloud]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            for records in self.records(file, size):
                with np.errstate(invalid="ignore"):  # copying a signalling NaN warns
                    xyz = np.stack([records[axis].astype(np.float64) for axis in AXES], axis=1)
                fields = {n: records[n].astype(records[n].dtype.newbyteorder("=")) for n in self.header.fields}
                yield Cloud(xyz, fields, self.header)

    def records(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        """The records of a file positioned at its first point, at most ``size`` at a time."""
        raise NotImplementedError

    def binary(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        for done in range(0, self.header.count, size):
            want = min(size, self.header.count - done)
            data = file.read(want * self.dtype.itemsize)
            if len(data) < want * self.dtype.itemsize:
                raise self._truncated(done + len(data) // self.dtype.itemsize)
            yield np.frombuffer(data, self.dtype)

    def text(self, lines: Iterable[bytes], size: int) -> Iterator[np.ndarray]:
        source = iter(lines)
        for done in range(0, self.header.count, size):
            want = min(size, self.header.count - done)
            part = list(islice(source, want))
            if len(part) < want:
                raise self._truncated(done + len(part))
            yield self._parse(part, f"points {done} to {done + want - 1}")

    def _parse(self, lines: Sequence[bytes], place: str) -> np.ndarray:
        names = self.dtype.names or ()
        try:
            if not lines[0].strip():  # NumPy would warn if all lines are empty
                raise ValueError("an empty line")
            rows = np.loadtxt(lines, dtype=np.float64, ndmin=2, comments=None)
            if rows.shape != (len(lines), len(names)):
                raise ValueError("wrong number of values")
            exact = {
                c: np.loadtxt(lines, dtype=self.dtype[name].newbyteorder("="), usecols=c, ndmin=1, comments=None)
                for c, name in enumerate(names)
                if self.dtype[name].kind in "iu" and np.abs(rows[:, c]).max() >= _ROUNDED
            }
        except ValueError as error:
            raise InputError(f"Expected {len(names)} numbers a line", file=self.path, place=place) from error
        records = np.empty(len(lines), self.dtype)
        for column, name in enumerate(names):
            with np.errstate(invalid="ignore", over="ignore"):
                records[name] = exact.get(column, rows[:, column])
        return records

    def _truncated(self, count: int) -> InputError:
        return InputError(f"ends after {count} of {self.header.count} points", file=self.path)


def as_lines(rows: np.ndarray) -> bytes:
    """Records as text, one per line, each number with the fewest digits that preserve it."""
    return "".join(" ".join(map(repr, row)) + "\n" for row in rows.tolist()).encode()


def records(cloud: Cloud, dtype: np.dtype[Any]) -> np.ndarray:
    """The columns of a cloud that ``dtype`` names, as records."""
    rows = np.empty(len(cloud), dtype)
    for name in dtype.names or ():
        rows[name] = cloud.column(name)
    return rows


def column_order(cloud: Cloud, original: Iterable[str]) -> list[str]:
    """Columns to write: first those of the original file that are still there, then new fields."""
    order = [name for name in original if name in AXES or name in cloud.fields]
    return order + [name for name in cloud.fields if name not in order]
