"""The bytes of a model file, plain or compressed, in blocks and within limits."""

from __future__ import annotations

import lzma
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fgnn.errors import InputError
from fgnn.files import check_input, may_expand_to

BLOCK = 1 << 20
# The header of an xz file sets the size of the dictionary; `xz -9` needs 65 MiB.
_XZ_MEMORY = 100 << 20
_FREE_EXPANSION = 64 << 20

COMPRESSIONS = (".gz", ".xz")


@dataclass(frozen=True)
class Limits:
    """Resource limits for reading a model file.

    Attributes:
        decompressed: Bytes a ``.gz`` or ``.xz`` file may expand to. None: 64 MiB, or 256 times the compressed size if
            that is more.
        entries: Table entries (and variable states) a file may imply without listing them, as sparse formats do. A
            file of more bytes than this may imply one entry per byte.
        word: Characters per word.
    """

    decompressed: int | None = None
    entries: int = 1 << 24
    word: int = 1 << 16


def fail(what: str, path: Path, place: str = "", line: int | None = None) -> NoReturn:
    """Reject a file in one line that names the file, the line and the place."""
    where = [f"line {line}"] if line is not None else []
    raise InputError(what, file=path, place=", ".join([*where, place] if place else where))


class ByteStream:
    """The decompressed bytes of a file in blocks, with an upper bound on their number."""

    def __init__(self, path: str | Path, limits: Limits | None = None) -> None:
        self.path = Path(path)
        self.limits = limits or Limits()
        size = check_input(self.path)
        self.compressed = self.path.suffix.lower() in COMPRESSIONS
        allowed = self.limits.decompressed
        if allowed is None:
            allowed = may_expand_to(size, _FREE_EXPANSION)
        self.most_bytes = allowed if self.compressed else size

    @property
    def most_entries(self) -> int:
        """The number of table entries, or states, this file may imply."""
        return max(self.limits.entries, self.most_bytes if not self.compressed else 0)

    def blocks(self) -> Iterator[bytes]:
        """The bytes, about a megabyte at a time."""
        try:
            with self.path.open("rb") as file:
                raw = iter(lambda: file.read(BLOCK), b"")
                total = 0
                for block in _inflate(raw, self.path) if self.compressed else raw:
                    total += len(block)
                    if self.compressed and total > self.most_bytes:
                        what = f"expands to more than the {self.most_bytes} bytes allowed for it"
                        fail(what, self.path, f"byte {total}")
                    yield block
        except OSError as error:
            fail(error.strerror or str(error), self.path)

    def whole(self) -> bytearray:
        """All bytes at once."""
        data = bytearray()
        for block in self.blocks():
            data += block
        return data


class ModelText(ByteStream, ABC):
    """A text file while it is read.

    Attributes:
        place: The part of the file being read, such as "factor 3"; error messages name it after the line.
        finished: Whether the whole file has been read, so that errors have no line.
    """

    def __init__(self, path: str | Path, limits: Limits | None) -> None:
        super().__init__(path, limits)
        self.place = ""
        self.finished = False
        self._claimed = 0

    @abstractmethod
    def line(self, at: int | None) -> int:
        """The line of the last word taken, or of another position."""

    def fail(self, what: str, place: str | None = None, *, at: int | None = None) -> NoReturn:
        """Reject the file at the last word taken, or at another position."""
        fail(what, self.path, self.place if place is None else place, None if self.finished else self.line(at))

    def claim(self, entries: int, place: str | None = None, what: str = "table entries") -> None:
        """Count entries that the file implies without listing them, and reject the file beyond the limit."""
        self._claimed += entries
        if self._claimed > self.most_entries:
            self.fail(f"declares {self._claimed} {what} or more, above the limit of {self.most_entries}", place)


def _inflate(raw: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Decompress a file of one or more members, at most a block at a time."""
    gz = path.suffix.lower() == ".gz"
    kind = "gzip" if gz else "xz"
    inflater: Any = None
    for chunk in raw:
        data = chunk
        while True:
            if inflater is None:
                data = data if gz else data.lstrip(b"\0")  # xz allows zero padding between streams
                if not data:
                    break
                inflater = zlib.decompressobj(wbits=31) if gz else lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
            try:
                block = inflater.decompress(data, BLOCK)
            except (zlib.error, lzma.LZMAError) as problem:
                fail(f"is not a whole {kind} file ({problem})", path)
            if block:
                yield block
            if inflater.eof:
                data, inflater = inflater.unused_data, None
                continue
            # zlib returns the unused input; lzma keeps it and must be called until it needs more
            data = getattr(inflater, "unconsumed_tail", b"")
            if not data and getattr(inflater, "needs_input", len(block) < BLOCK):
                break
    if inflater is not None:
        fail(f"is not a whole {kind} file (it ends in the middle)", path)
