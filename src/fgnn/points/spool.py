"""Points on disk, in the order of the scan."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def release_pages(array: NDArray[Any]) -> None:
    """Release the resident pages of a mapped array, which stay in the page cache; nothing for other arrays."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


class Spool:
    """The valid points in a plain file, chunk by chunk, so that a compressed scan is decompressed only once."""

    def __init__(self, file: Path, width: int) -> None:
        self.file, self.width = file, width
        self.counts: list[int] = []
        file.touch()

    def add(self, xyz: NDArray[np.float64], point: NDArray[np.int64], extra: NDArray[np.float32] | None) -> None:
        with self.file.open("ab") as out:
            for array in (xyz, point) if extra is None else (xyz, point, extra):
                out.write(np.ascontiguousarray(array).data)
        self.counts.append(len(xyz))

    def __iter__(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float32]]]:
        """Of each chunk: coordinates (n, 3), positions in the scan (n,) and extra features (n, F)."""
        with self.file.open("rb") as source:
            for count in self.counts:
                xyz = np.fromfile(source, np.float64, 3 * count).reshape(-1, 3)
                point = np.fromfile(source, np.int64, count)
                yield xyz, point, np.fromfile(source, np.float32, self.width * count).reshape(count, self.width)
