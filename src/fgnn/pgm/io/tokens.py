"""Words and numbers of a text file, read block by block.

NumPy converts numbers a block at a time, so tables never exist as Python objects, and at most one block of text is
in memory beside the arrays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.numbers import any_underflows, shown, to_number, to_numbers, underflows
from fgnn.pgm.io.stream import Limits, ModelText, fail

_SPACE = b" \t\n\r\v\f"
_COMMENT = re.compile(rb"#[^\n]*")
_INTEGER = re.compile(rb"-?\d{1,18}")
_LONG_INTEGER = re.compile(rb"-?\d{1,40}")
EXACT = 2**53  # integers up to this are exact in float64


class TokenStream(ModelText):
    """Whitespace-separated words of a file.

    Args:
        path: The file, plain or compressed.
        limits: Resource limits of the reader.
        comments: Whether ``#`` starts a comment that runs to the end of the line.
    """

    def __init__(self, path: str | Path, limits: Limits | None = None, *, comments: bool = False) -> None:
        super().__init__(path, limits)
        self._blocks = self.blocks()
        self._comments = comments
        self._tail = b""
        self._read = 0
        self._lines_before = 0
        self._block = b""
        self._words: list[bytes] = []
        self._spans: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._at = 0

    # ---- errors -------------------------------------------------------------------------------------------

    def line(self, at: int | None) -> int:
        """The line of the last word taken, or of the word ``at`` words after the cursor."""
        word = max(self._at + (-1 if at is None else at), 0)
        starts, _ = self._index()
        end = int(starts[word]) if word < len(starts) else len(self._block)
        return self._lines_before + self._block.count(b"\n", 0, end) + 1

    @property
    def bytes_left(self) -> int:
        """Upper bound on the bytes of the words still to come."""
        starts, _ = self._index()
        rest = len(self._block) - int(starts[self._at]) if self._at < len(starts) else 0
        return rest + len(self._tail) + max(self.most_bytes - self._read, 0)

    def check_room(self, count: int, what: str, place: str | None = None) -> None:
        """Reject a declared count that the rest of the file cannot hold, before allocating anything."""
        room = self.bytes_left
        if count > (room + 1) // 2:  # a word and the space after it take two bytes
            has = "can hold no more than" if self.compressed else "has only"
            self.fail(f"declares {count} {what} but the file {has} {room} bytes left", place)

    # ---- words --------------------------------------------------------------------------------------------

    def word(self, what: str) -> bytes:
        """Take the next word; ``what`` names it in the message if the file ends here."""
        if self._at >= len(self._words) and not self._fill():
            self.fail(f"Expected {what} (got the end of the file)")
        self._at += 1
        return self._words[self._at - 1]

    def peek(self) -> bytes | None:
        """The next word without taking it; None at the end of the file."""
        if self._at >= len(self._words) and not self._fill():
            return None
        return self._words[self._at]

    def end(self) -> None:
        """Reject anything but whitespace up to the end of the file."""
        rest = self.peek()
        if rest is not None:
            self.fail(f"Expected the end of the file (got {shown(rest)})", "", at=0)

    def integer(self, what: str, low: float = 0, high: float = math.inf) -> int:
        """Take the next word as an integer in ``low..high``."""
        word = self.word(what)
        if not _INTEGER.fullmatch(word):
            self.fail(f"Expected {what}, an integer (got {shown(word)})")
        value = int(word)
        if not low <= value <= high:
            allowed = f"of at least {low}" if high == math.inf else f"in {low}..{high}"
            self.fail(f"Expected {what} {allowed} (got {value})")
        return value

    def integers(self, count: int, what: str, low: float = 0, high: float = math.inf) -> list[int]:
        """Take a few integers in ``low..high``, such as a scope."""
        words = self._words[self._at : self._at + count]
        if len(words) == count and all(map(bytes.isdigit, words)) and max(map(len, words), default=0) <= 18:
            values = list(map(int, words))
            if not values or low <= min(values) <= max(values) <= high:
                self._at += count
                return values
        return [self.integer(what, low, high) for _ in range(count)]

    def ahead(self) -> NDArray[np.float64] | None:
        """The remaining words of the block as numbers, without taking them; None if one is not a number."""
        if self._at >= len(self._words) and not self._fill():
            return None
        left = len(self._words) - self._at
        return to_numbers(self._text(left), left)

    def spelled_integers(self, count: int) -> bool:
        """Whether the next ``count`` words, already known to be numbers, are spelled as integers."""
        return not _spelled_real(self._text(count))

    def skip(self, count: int) -> None:
        """Take words returned by `ahead`."""
        self._at += count

    def _text(self, count: int) -> bytes:
        starts, ends = self._index()
        return self._block[int(starts[self._at]) : int(ends[self._at + count - 1])] if count else b""

    # ---- arrays -------------------------------------------------------------------------------------------

    def numbers(
        self,
        count: int,
        what: str,
        place: Callable[[int], str] = lambda i: "",
        *,
        low: float = -np.inf,
        integral: bool = False,
        top: int | None = None,
    ) -> NDArray[np.float64]:
        """Take finite numbers of at least ``low``; ``place(i)`` locates number i in error messages.

        With ``integral`` they must be integers that float64 holds exactly. With ``top`` larger ones are rounded, but on
        their side of ``top``: those that reach it become ``inf``, the others stay below ``float(top)``.
        """
        if count > len(self._words) - self._at:
            self.check_room(count, what, place(0))
        values = np.empty(count)
        done = 0

        def refuse(wrong: Callable[[bytes], bool], expected: str) -> NoReturn:
            for k in range(take):
                if wrong(self._words[self._at + k]):
                    got = shown(self._words[self._at + k])
                    self.fail(f"Expected {expected} (got {got})", place(done + k), at=k)
            self.fail(f"Expected {expected}", place(done), at=0)

        def out_of_range(word: bytes) -> bool:
            number = to_number(word)
            return not np.isfinite(number) or number < low

        while done < count:
            if self._at >= len(self._words) and not self._fill():
                self.fail(f"Expected {count} {what} (got {done} and the end of the file)", place(done))
            take = min(count - done, len(self._words) - self._at)
            text = self._text(take)
            part = to_numbers(text, take)
            if part is None or not np.isfinite(part).all() or (part < low).any():
                refuse(out_of_range, f"finite {what}" + (f" of at least {low:g}" if low > -np.inf else ""))
            if any_underflows(part, text, self._words, self._at):
                refuse(underflows, f"{what} that do not underflow to 0")
            if integral and (_spelled_real(text) or (top is None and (np.abs(part) >= EXACT).any())):
                refuse(_not_exact_integer if top is None else _not_integer, f"integer {what}")
            if top is not None:
                for k in np.flatnonzero(np.abs(part) >= EXACT).tolist():
                    if _not_integer(self._words[self._at + k]):
                        refuse(_not_integer, f"integer {what}")
                    part[k] = rounded_below(int(self._words[self._at + k]), top)
            values[done : done + take] = part
            self._at += take
            done += take
        return values

    # ---- blocks -------------------------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read blocks until one holds a word; False at the end of the file."""
        while True:
            self._lines_before += self._block.count(b"\n")
            raw = next(self._blocks, None)
            self._read += len(raw or b"")
            data = self._tail + (raw or b"")
            cut = len(data) if raw is None else 1 + max(data.rfind(bytes([c])) for c in _SPACE)
            if self._comments and raw is not None:
                comment = data.find(b"#", data.rfind(b"\n", 0, cut) + 1, cut)
                cut = cut if comment < 0 else comment  # a comment that may go on in the next block
            self._tail, data = data[cut:], data[:cut]
            if len(self._tail) > self.limits.word:
                kind = "comment" if self._tail.startswith(b"#") else "word"
                what = f"Expected text (got a {kind} of more than {self.limits.word} characters)"
                fail(what, self.path, line=self._lines_before + data.count(b"\n") + 1)
            if self._comments and b"#" in data:
                data = _COMMENT.sub(b"", data)
            self._block, self._words, self._at, self._spans = data, data.split(), 0, None
            if self._words:
                return True
            if raw is None:
                return False

    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and end of each word in the block."""
        if self._spans is None:
            codes = np.frombuffer(self._block, np.uint8)
            space = np.ones(len(codes) + 2, dtype=bool)
            space[1:-1] = (codes == 32) | ((codes >= 9) & (codes <= 13))
            self._spans = np.flatnonzero(space[:-1] & ~space[1:]), np.flatnonzero(~space[:-1] & space[1:])
        return self._spans


def _spelled_real(text: bytes) -> bool:
    return any(letter in text for letter in (b".", b"e", b"E", b"n", b"N"))  # n: nan, inf


def rounded_below(value: int, top: int) -> float:
    """An integer as float64, below ``float(top)`` exactly if it is below ``top``; ``inf`` if it is not."""
    if value >= top:
        return math.inf
    return min(float(value), math.nextafter(float(top), -math.inf))


def _not_exact_integer(word: bytes) -> bool:
    return not _INTEGER.fullmatch(word) or abs(int(word)) >= EXACT


def _not_integer(word: bytes) -> bool:
    return not _LONG_INTEGER.fullmatch(word)
