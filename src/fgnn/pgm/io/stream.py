"""Bytes of a model file, plain or compressed, in blocks and within stated limits."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fgnn.errors import InputError
from fgnn.files import may_expand_to

BLOCK = 1 << 20
# xz keeps a dictionary as large as the file's header says; `xz -9` needs 65 MiB.
_XZ_MEMORY = 100 << 20
_FREE_EXPANSION = 64 << 20

COMPRESSIONS = (".gz", ".xz")


@dataclass(frozen=True)
class Limits:
    """What a model file may ask for before it is refused.

    Attributes:
        decompressed: Bytes that a ``.gz`` or ``.xz`` file may expand to. None: 64 MiB, or 256 for each compressed
            byte where that is more.
        entries: Table entries (and states of variables) that a file may imply without spelling them out, as sparse
            formats do. A file longer than this in bytes may imply as many as it has bytes.
        word: Characters of one word.
    """

    decompressed: int | None = None
    entries: int = 1 << 24
    word: int = 1 << 16


def fail(what: str, path: Path, place: str = "") -> NoReturn:
    """Refuse a file in one line that names the file and the place."""
    raise InputError(what, file=path, place=place)


class ByteStream:
    """The decompressed bytes of a file as blocks, with an upper bound on how many there can be."""

    def __init__(self, path: str | Path, limits: Limits | None = None) -> None:
        self.path = Path(path)
        self.limits = limits or Limits()
        try:
            if not self.path.exists():
                fail("no such file", self.path)
            if not self.path.is_file():
                fail("Expected a file (got a folder or a device)", self.path)
            size = self.path.stat().st_size
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name, and `fail` itself
            if isinstance(error, InputError):
                raise
            fail(getattr(error, "strerror", None) or str(error), self.path)
        self.compressed = self.path.suffix.lower() in COMPRESSIONS
        allowed = self.limits.decompressed
        if allowed is None:
            allowed = may_expand_to(size, _FREE_EXPANSION)
        self.most_bytes = allowed if self.compressed else size

    @property
    def most_entries(self) -> int:
        """How many table entries, or states, this file may imply."""
        return max(self.limits.entries, self.most_bytes if not self.compressed else 0)

    def blocks(self) -> Iterator[bytes]:
        """The bytes, about a megabyte at a time."""
        try:
            with self.path.open("rb") as file:
                raw = iter(lambda: file.read(BLOCK), b"")
                suffix = self.path.suffix.lower()
                if suffix == ".gz":
                    yield from self._bounded(_gunzip(raw, self.path))
                elif suffix == ".xz":
                    yield from self._bounded(_unxz(raw, self.path))
                else:
                    yield from raw
        except OSError as error:
            fail(error.strerror or str(error), self.path)

    def whole(self) -> bytearray:
        """All bytes at once."""
        data = bytearray()
        for block in self.blocks():
            data += block
        return data

    def _bounded(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        total = 0
        for block in blocks:
            total += len(block)
            if total > self.most_bytes:
                fail(f"expands to more than the {self.most_bytes} bytes allowed for it", self.path, f"byte {total}")
            yield block


def _gunzip(raw: Iterator[bytes], path: Path) -> Iterator[bytes]:
    def member() -> Any:
        return zlib.decompressobj(wbits=31)

    yield from _inflate(raw, path, "gzip", member, zlib.error)


def _unxz(raw: Iterator[bytes], path: Path) -> Iterator[bytes]:
    def member() -> Any:
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    yield from _inflate(raw, path, "xz", member, lzma.LZMAError)


def _inflate(raw: Iterator[bytes], path: Path, kind: str, member: Any, error: type[Exception]) -> Iterator[bytes]:
    """Decompress a file of one or more members, never more than a block at a time."""
    inflater = None
    for chunk in raw:
        data = chunk
        while True:
            if inflater is None:
                data = data.lstrip(b"\0") if kind == "xz" else data  # xz allows zero padding between streams
                if not data:
                    break
                inflater = member()
            try:
                block = inflater.decompress(data, BLOCK)
            except error as problem:
                fail(f"is not a whole {kind} file ({problem})", path)
            if block:
                yield block
            if inflater.eof:
                data, inflater = inflater.unused_data, None
                continue
            # zlib hands the rest back; lzma keeps it and wants to be called until it asks for more
            data = getattr(inflater, "unconsumed_tail", b"")
            if not data and getattr(inflater, "needs_input", len(block) < BLOCK):
                break
    if inflater is not None:
        fail(f"is not a whole {kind} file (it ends in the middle)", path)
