"""Words and numbers of a text file, read block by block.

Numbers are converted a block at a time by NumPy, so a table never exists as Python objects, and no more than a
block of text is held beside the arrays it becomes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.stream import ByteStream, Limits, fail

_SPACE = b" \t\n\r\v\f"
_COMMENT = re.compile(rb"#[^\n]*")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_INTEGER = re.compile(rb"-?\d{1,18}")
# What a number that float64 cannot tell from 0 has: an exponent of three digits, or as many zeros.
_SMALL = re.compile(rb"[eE]-\d{3}|0{300}")


def shown(word: bytes | str) -> str:
    """A word as it can stand in a one-line message: quoted, escaped and cut."""
    text = word if isinstance(word, str) else _decoded(word)
    cut = text if len(text) <= 30 else text[:27] + "..."
    return ascii(cut)


def _decoded(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word.decode("latin-1")  # a character for each byte


class TokenStream:
    """White-space separated words of a file.

    Args:
        path: The file, plain or compressed.
        limits: What it may ask for.
        comments: Whether ``#`` starts a comment that runs to the end of the line.
    """

    def __init__(self, path: str | Path, limits: Limits | None = None, *, comments: bool = False) -> None:
        self.source = ByteStream(path, limits)
        self.path = self.source.path
        self._blocks = self.source.blocks()
        self._comments = comments
        self._tail = b""
        self._read = 0
        self._lines_before = 0
        self._block = b""
        self._words: list[bytes] = []
        self._starts: NDArray[np.int64] | None = None
        self._ends: NDArray[np.int64] | None = None
        self._at = 0

    # ---- place and refusal --------------------------------------------------------------------------------

    def fail(self, what: str, place: str = "", *, ahead: int = -1) -> NoReturn:
        """Refuse the file at the last word taken, or at one ``ahead`` words further on in the block."""
        index = max(self._at + ahead, 0)
        line = f"line {self._line(index)}"
        fail(what, self.path, f"{line}, {place}" if place else line)

    def _line(self, word: int) -> int:
        starts, _ = self._index()
        end = int(starts[word]) if word < len(starts) else len(self._block)
        return self._lines_before + self._block.count(b"\n", 0, end) + 1

    @property
    def bytes_left(self) -> int:
        """No more than this many bytes of words are still to come."""
        starts, _ = self._index()
        rest = len(self._block) - int(starts[self._at]) if self._at < len(starts) else 0
        return rest + len(self._tail) + max(self.source.most_bytes - self._read, 0)

    def check_room(self, count: int, what: str, place: str = "") -> None:
        """Refuse a declared count that the rest of the file cannot hold, before anything is allocated."""
        room = self.bytes_left
        if count > (room + 1) // 2:  # a word and the space after it take two bytes
            where = "has only" if not self.source.compressed else "can hold no more than"
            self.fail(f"declares {count} {what} but the file {where} {room} bytes left", place)

    # ---- words --------------------------------------------------------------------------------------------

    def word(self, what: str, place: str = "") -> bytes:
        """The next word; ``what`` names it where the file ends instead."""
        if self._at >= len(self._words) and not self._fill():
            self.fail(f"Expected {what} (got the end of the file)", place)
        self._at += 1
        return self._words[self._at - 1]

    def peek(self) -> bytes | None:
        """The next word without taking it; None at the end of the file."""
        if self._at >= len(self._words) and not self._fill():
            return None
        return self._words[self._at]

    def end(self) -> None:
        """Refuse anything but white space up to the end of the file."""
        rest = self.peek()
        if rest is not None:
            self.fail(f"Expected the end of the file (got {shown(rest)})", ahead=0)

    def integer(self, what: str, low: int | None = 0, high: int | None = None, place: str = "") -> int:
        """The next word as an integer in ``low..high``."""
        word = self.word(what, place)
        if not _INTEGER.fullmatch(word):
            self.fail(f"Expected {what}, an integer (got {shown(word)})", place)
        value = int(word)
        if (low is not None and value < low) or (high is not None and value > high):
            self.fail(f"Expected {what} {_range(low, high)} (got {value})", place)
        return value

    def integers(self, count: int, what: str, low: int | None, high: int | None, place: str = "") -> list[int]:
        """The next words as integers, all in ``low..high``; for the few of a scope."""
        words = self._words[self._at : self._at + count]
        if len(words) == count and all(map(bytes.isdigit, words)) and max(map(len, words), default=0) <= 18:
            values = list(map(int, words))
            if not values or ((low is None or min(values) >= low) and (high is None or max(values) <= high)):
                self._at += count
                return values
        return [self.integer(what, low, high, place) for _ in range(count)]

    def ahead(self) -> NDArray[np.float64] | None:
        """All words that are left of the block as numbers, without taking them; None where one is not a number."""
        if self._at >= len(self._words) and not self._fill():
            return None
        left = len(self._words) - self._at
        return _to_numbers(self._text(left), left)

    def spelled_integers(self, count: int) -> bool:
        """Whether the next words, known to be numbers, are spelled as integers."""
        return not _spelled_real(self._text(count))

    def skip(self, count: int) -> None:
        """Take words that `ahead` has shown."""
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
    ) -> NDArray[np.float64]:
        """The next words as finite numbers of at least ``low``; ``place(i)`` says where number i belongs."""
        if count > len(self._words) - self._at:
            self.check_room(count, what, place(0))
        values = np.empty(count)
        done = 0
        while done < count:
            if self._at >= len(self._words) and not self._fill():
                self.fail(f"Expected {count} {what} (got {done} and the end of the file)", place(done))
            take = min(count - done, len(self._words) - self._at)
            text = self._text(take)
            part = _to_numbers(text, take)
            if part is None or not np.isfinite(part).all() or (part < low).any():
                self._refuse_number(take, done, what, place, low)
            if not part.all() and _SMALL.search(text):
                self._refuse_underflow(part, done, what, place)
            if integral and (_spelled_real(text) or (np.abs(part) >= 2**53).any()):
                self._refuse_integer(take, done, what, place)
            values[done : done + take] = part
            self._at += take
            done += take
        return values

    def _refuse_number(self, take: int, done: int, what: str, place: Callable[[int], str], low: float) -> NoReturn:
        for k in range(take):
            word = self._words[self._at + k]
            number = float(word) if _NUMBER.fullmatch(word) else np.nan
            if not np.isfinite(number) or number < low:
                kind = f"finite {what}" if low == -np.inf else f"finite {what} of at least {low:g}"
                self.fail(f"Expected {kind} (got {shown(word)})", place(done + k), ahead=k)
        self.fail(f"Expected {what} (got something else)", place(done), ahead=0)

    def _refuse_underflow(self, part: NDArray[np.float64], done: int, what: str, place: Callable[[int], str]) -> None:
        """Refuse a number that is not 0 and would become it: a small probability is not an impossible one."""
        for k in np.flatnonzero(part == 0).tolist():
            word = self._words[self._at + k]
            if re.split(rb"[eE]", word)[0].strip(b"+-.0"):
                self.fail(f"Expected {what} that float64 can tell from 0 (got {shown(word)})", place(done + k), ahead=k)

    def _refuse_integer(self, take: int, done: int, what: str, place: Callable[[int], str]) -> NoReturn:
        for k in range(take):
            word = self._words[self._at + k]
            if not _INTEGER.fullmatch(word) or abs(int(word)) >= 2**53:
                self.fail(f"Expected integer {what} (got {shown(word)})", place(done + k), ahead=k)
        self.fail(f"Expected integer {what}", place(done), ahead=0)

    # ---- blocks -------------------------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Take blocks until one holds a word; False at the end of the file."""
        ends = b"\n" if self._comments else _SPACE
        while True:
            self._lines_before += self._block.count(b"\n")
            raw = next(self._blocks, None)
            self._read += len(raw or b"")
            data = self._tail + (raw or b"")
            cut = len(data) if raw is None else 1 + max(data.rfind(bytes([c])) for c in ends)
            self._tail, data = data[cut:], data[:cut]
            if len(self._tail) > self.source.limits.word:
                kind = "line" if self._comments else "word"
                line = self._lines_before + data.count(b"\n") + 1
                fail(f"Expected text (got a {kind} of more than {self.source.limits.word} characters)", self.path,
                     f"line {line}")  # fmt: skip
            if self._comments and b"#" in data:
                data = _COMMENT.sub(b"", data)
            self._block, self._words, self._at = data, data.split(), 0
            self._starts = self._ends = None
            if self._words:
                return True
            if raw is None:
                return False

    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where in the block each word starts and ends."""
        if self._starts is None or self._ends is None:
            codes = np.frombuffer(self._block, np.uint8)
            space = np.ones(len(codes) + 2, dtype=bool)
            space[1:-1] = (codes == 32) | ((codes >= 9) & (codes <= 13))
            self._starts = np.flatnonzero(space[:-1] & ~space[1:])
            self._ends = np.flatnonzero(~space[:-1] & space[1:])
        return self._starts, self._ends


def _to_numbers(text: bytes, count: int) -> NDArray[np.float64] | None:
    """The numbers in a text of ``count`` words, or None where some word is not a number."""
    try:
        with warnings.catch_warnings():
            # before 2.4 NumPy only warns where it stops early
            warnings.simplefilter("error", DeprecationWarning)
            values = np.fromstring(text, sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    return values if len(values) == count else None


def _spelled_real(text: bytes) -> bool:
    return any(letter in text for letter in (b".", b"e", b"E", b"n", b"N"))  # n: nan, inf


def _range(low: int | None, high: int | None) -> str:
    if high is None:
        return f"of at least {low}"
    if low is None:
        return f"of at most {high}"
    return f"in {low}..{high}"
