"""Words and punctuation of a text that is held whole: the lexer of the bracketed formats, BIF and CFN."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.stream import ByteStream, Limits, fail
from fgnn.pgm.io.tokens import shown

# Sums of numbers up to this stay far from overflow, whatever a file holds.
LARGEST = 1e100

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_SMALL = re.compile(r"[eE]-\d{3}|0{300}")  # what a number that float64 cannot tell from 0 has


class Text:
    """A cursor over the tokens of a file.

    Args:
        path: The file, plain or compressed.
        limits: What it may ask for.
        marks: The punctuation; each is a token of its own.
        separators: What separates tokens besides white space.
        comment: A pattern for what is dropped, outside quotes, before anything is read.
    """

    def __init__(
        self, path: str | Path, limits: Limits | None, *, marks: str, comment: str, separators: str = ""
    ) -> None:
        self.source = ByteStream(path, limits)
        self.path = self.source.path
        data = self.source.whole()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            fail(f"Expected UTF-8 text (got byte 0x{data[error.start]:02x})", self.path, f"line {line}")
        del data
        if any(mark in text for mark in ("//", "/*", "#")):
            text = re.sub(rf'"[^"\n]*"|(?P<comment>{comment})', _blanked, text)
        self.text = text
        self.at = 0
        self._start = 0
        mark, separator = re.escape(marks), re.escape(separators)
        self._blank = re.compile(rf"[\s{separator}]*")
        self._token = re.compile(rf'[{mark}]|"([^"\n]*)"|[^\s{mark}{separator}"]+')
        self._loose = str.maketrans(dict.fromkeys(f',"{separators}', " "))
        self._marks = marks
        self._close = re.compile(rf"[{re.escape(marks.replace(',', ''))}]")
        self._skip()

    # ---- place and refusal --------------------------------------------------------------------------------

    def fail(self, what: str, place: str = "", at: int | None = None) -> NoReturn:
        """Refuse the file at the last token taken, or at a position."""
        position = self._start if at is None else at
        line = f"line {self.text.count(chr(10), 0, position) + 1}"
        fail(what, self.path, f"{line}, {place}" if place else line)

    def refuse(self, what: str, place: str = "") -> NoReturn:
        """`fail` at the last token, as a callback."""
        self.fail(what, place)

    # ---- tokens -------------------------------------------------------------------------------------------

    def peek(self) -> str | None:
        """The next token without taking it (quotes removed); None at the end."""
        found = self._match()
        return None if found is None else self._bare(found)

    def next(self, what: str, place: str = "") -> str:
        """Take the next token."""
        found = self._match()
        if found is None:
            self._start = len(self.text)
            self.fail(f"Expected {what} (got the end of the file)", place)
        self._start, self.at = found.start(), found.end()
        self._skip()
        return self._bare(found)

    def is_mark(self, marks: str) -> bool:
        """Whether the next token is one of these punctuation marks."""
        return self.at < len(self.text) and self.text[self.at] in marks

    def expect(self, token: str, place: str = "") -> None:
        """Take the next token and refuse any but this one."""
        got = self.next(shown(token), place)
        if got != token:
            self.fail(f"Expected {shown(token)} (got {shown(got)})", place)

    def name(self, what: str, place: str = "") -> str:
        """Take a token that is not punctuation."""
        if self.is_mark(self._marks):
            self._start = self.at
            self.fail(f"Expected {what} (got {shown(self.text[self.at])})", place)
        word = self.next(what, place)
        if len(word) > self.source.limits.word:
            self.fail(f"Expected {what} (got a word of more than {self.source.limits.word} characters)", place)
        return word

    def integer(self, what: str, low: int, high: int, place: str = "") -> int:
        """Take an integer in ``low..high``."""
        word = self.name(what, place)
        if not re.fullmatch(r"[-+]?[0-9]{1,18}", word):
            self.fail(f"Expected {what}, an integer (got {shown(word)})", place)
        if not low <= int(word) <= high:
            self.fail(f"Expected {what} in {low}..{high} (got {int(word)})", place)
        return int(word)

    def number(self, what: str, place: str = "") -> float:
        """Take a number of at most `LARGEST` in size."""
        word = self.name(what, place)
        if not _is_number(word):
            self.fail(
                f"Expected {what}, a number of at most {LARGEST:g}, 0 or apart from it (got {shown(word)})", place
            )
        return float(word)

    def numbers_until(self, close: str, what: str, place: str = "") -> NDArray[np.float64]:
        """Take numbers, separated by commas or blanks, up to a closing mark, which is taken as well."""
        found = self._close.search(self.text, self.at)
        if found is None or found.group() not in close:
            self._start = found.start() if found else len(self.text)
            got = shown(found.group()) if found else "the end of the file"
            self.fail(f"Expected {what} and then {' or '.join(map(shown, close))} (got {got})", place)
        begin, end = self.at, found.start()
        body = self.text[begin:end]
        values = to_numbers(body.translate(self._loose).split())
        if values is None:
            self._refuse_number(begin, end, what, place)
        self._start, self.at = end, found.end()
        self._skip()
        return values

    def _refuse_number(self, begin: int, end: int, what: str, place: str) -> NoReturn:
        for found in re.compile(r'[^\s,:"]+').finditer(self.text, begin, end):
            word = found.group()
            if not _is_number(word):
                told = f"Expected {what}, numbers of at most {LARGEST:g}, 0 or apart from it (got {shown(word)})"
                self.fail(told, place, at=found.start())
        self.fail(f"Expected {what}, numbers of at most {LARGEST:g}", place, at=begin)

    # ---- inner --------------------------------------------------------------------------------------------

    def _match(self) -> re.Match[str] | None:
        if self.at >= len(self.text):
            return None
        found = self._token.match(self.text, self.at)
        if found is None:
            self.fail("Expected a closing quote on the same line (got none)", at=self.at)
        return found

    def _skip(self) -> None:
        found = self._blank.match(self.text, self.at)
        self.at = found.end() if found else self.at

    @staticmethod
    def _bare(found: re.Match[str]) -> str:
        return found.group() if found.group(1) is None else found.group(1)


def _is_number(word: str) -> bool:
    if _NUMBER.fullmatch(word) is None or not abs(float(word)) <= LARGEST:
        return False
    # a small probability that would become 0 is not an impossible one
    return float(word) != 0 or not re.split("[eE]", word)[0].strip("+-.0")


def _blanked(found: re.Match[str]) -> str:
    """A comment as the line ends in it, so that lines keep their numbers; anything else as it is."""
    comment = found["comment"]
    return found.group() if comment is None else "\n" * comment.count("\n")


def to_numbers(words: list[str]) -> NDArray[np.float64] | None:
    """Numbers of at most `LARGEST` in size from words, or None where some word is not one."""
    if not words:
        return np.zeros(0)
    joined = " ".join(words)
    try:
        with warnings.catch_warnings():
            # before 2.4 NumPy only warns where it stops early
            warnings.simplefilter("error", DeprecationWarning)
            values = np.fromstring(joined, sep=" ")
    except (ValueError, DeprecationWarning):
        return None
    if len(values) != len(words) or not bool((np.abs(values) <= LARGEST).all()):
        return None
    if (
        not values.all()
        and _SMALL.search(joined)
        and not all(_is_number(words[k]) for k in np.flatnonzero(values == 0))
    ):
        return None
    return values
