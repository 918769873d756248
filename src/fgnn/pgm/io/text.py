"""Lexer of the bracketed formats, BIF and CFN; the text is held in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.numbers import any_underflows, shown, to_number, to_numbers, underflows
from fgnn.pgm.io.stream import Limits, ModelText, fail

# Numbers up to this size can be summed without overflow.
LARGEST = 1e100
_INFINITE = re.compile(r"[-+]?inf(inity)?", re.ASCII | re.IGNORECASE)
_KIND = f"of at most {LARGEST:g} that do not underflow"


class Text(ModelText):
    """A cursor over the tokens of a file.

    Args:
        path: The file, plain or compressed.
        limits: Resource limits of the reader.
        marks: The punctuation characters; each is a token.
        separators: Characters that separate tokens besides whitespace.
        comment: Pattern of comments, which are removed outside quotes.
    """

    def __init__(
        self, path: str | Path, limits: Limits | None, *, marks: str, comment: str, separators: str = ""
    ) -> None:
        super().__init__(path, limits)
        data = self.whole()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            fail(f"Expected UTF-8 text (got byte 0x{data[error.start]:02x})", self.path, line=line)
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

    def line(self, at: int | None) -> int:
        """The line of the last token taken, or of a position in the text."""
        return self.text.count("\n", 0, self._start if at is None else at) + 1

    def peek(self) -> str | None:
        """The next token, without quotes and without taking it; None at the end."""
        match = self._match()
        return None if match is None else self._bare(match)

    def next(self, what: str) -> str:
        """Take the next token."""
        match = self._match()
        if match is None:
            self._start = len(self.text)
            self.fail(f"Expected {what} (got the end of the file)")
        self._start, self.at = match.start(), match.end()
        self._skip()
        return self._bare(match)

    def is_mark(self, marks: str) -> bool:
        """Whether the next token is one of these punctuation marks."""
        return self.at < len(self.text) and self.text[self.at] in marks

    def expect(self, token: str) -> None:
        """Take the next token and reject any but this one."""
        got = self.next(shown(token))
        if got != token:
            self.fail(f"Expected {shown(token)} (got {shown(got)})")

    def name(self, what: str) -> str:
        """Take a token that is not punctuation."""
        if self.is_mark(self._marks):
            self._start = self.at
            self.fail(f"Expected {what} (got {shown(self.text[self.at])})")
        word = self.next(what)
        if len(word) > self.limits.word:
            self.fail(f"Expected {what} (got a word of more than {self.limits.word} characters)")
        return word

    def names_until(self, close: str, what: str, separators: str = ",") -> Iterator[str]:
        """Take names with optional separators, and the closing mark after them."""
        while not self.is_mark(close):
            yield self.name(what)
            if self.is_mark(separators):
                self.next(what)
        self.expect(close)

    def numbered_states(self, names: Iterable[str]) -> dict[str, int]:
        """Number the states of a variable, whose names must be distinct."""
        states: dict[str, int] = {}
        for name in names:
            if name in states:
                self.fail(f"Expected distinct states (got {shown(name)} twice)")
            states[name] = len(states)
        return states

    def integer(self, what: str, low: int, high: int) -> int:
        """Take an integer in ``low..high``."""
        word = self.name(what)
        if not re.fullmatch(r"[-+]?[0-9]{1,18}", word):
            self.fail(f"Expected {what}, an integer (got {shown(word)})")
        if not low <= int(word) <= high:
            self.fail(f"Expected {what} in {low}..{high} (got {int(word)})")
        return int(word)

    def number(self, what: str, *, infinite: bool = False) -> float:
        """Take a number of at most `LARGEST` in size; with ``infinite`` also ``inf`` or ``-inf``."""
        word = self.name(what)
        if not is_number(word) and not (infinite and is_infinite(word)):
            self.fail(f"Expected {what}, a number of at most {LARGEST:g} that does not underflow (got {shown(word)})")
        return float(word)

    def numbers_until(self, close: str, what: str, *, infinite: bool = False) -> NDArray[np.float64]:
        """Take numbers, separated by commas or blanks, and the closing mark after them.

        With ``infinite`` they may also be ``inf`` or ``-inf``.
        """
        match = self._close.search(self.text, self.at)
        if match is None or match.group() not in close:
            self._start = match.start() if match else len(self.text)
            got = shown(match.group()) if match else "the end of the file"
            self.fail(f"Expected {what} and then {' or '.join(map(shown, close))} (got {got})")
        begin, end = self.at, match.start()
        values = numbers_of(self.text[begin:end].translate(self._loose).split(), infinite=infinite)
        if values is None:
            for word in re.compile(r'[^\s,:"]+').finditer(self.text, begin, end):
                if not is_number(word.group()) and not (infinite and is_infinite(word.group())):
                    self.fail(f"Expected {what}, numbers {_KIND} (got {shown(word.group())})", at=word.start())
            self.fail(f"Expected {what}, numbers {_KIND}", at=begin)
        self._start, self.at = end, match.end()
        self._skip()
        return values

    def _match(self) -> re.Match[str] | None:
        if self.at >= len(self.text):
            return None
        match = self._token.match(self.text, self.at)
        if match is None:
            self.fail("Expected a closing quote on the same line (got none)", at=self.at)
        return match

    def _skip(self) -> None:
        match = self._blank.match(self.text, self.at)
        self.at = match.end() if match else self.at

    @staticmethod
    def _bare(match: re.Match[str]) -> str:
        return match.group() if match.group(1) is None else match.group(1)


def is_number(word: str) -> bool:
    """Whether a word is a number of at most `LARGEST` in size that does not underflow."""
    return abs(to_number(word)) <= LARGEST and not underflows(word)


def is_infinite(word: str) -> bool:
    """Whether a word spells an infinity, rather than a number that overflows."""
    return _INFINITE.fullmatch(word) is not None


def numbers_of(words: list[str], *, infinite: bool = False) -> NDArray[np.float64] | None:
    """The numbers that words spell, or None if one is neither `is_number` nor, with ``infinite``, `is_infinite`."""
    text = " ".join(words).encode()
    values = to_numbers(text, len(words)) if words else np.zeros(0)
    if values is None or any_underflows(values, text, words):
        return None
    wrong = np.flatnonzero(~(np.abs(values) <= LARGEST)).tolist()
    return values if all(infinite and is_infinite(words[k]) for k in wrong) else None


def _blanked(match: re.Match[str]) -> str:
    """Replace a comment by its line ends, so that lines keep their numbers; keep anything else."""
    comment = match["comment"]
    return match.group() if comment is None else "\n" * comment.count("\n")
