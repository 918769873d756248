"""The paper's notation for networks: ``FGNN(64) - Res[FC(64) - FGNN(64) - FC(64)] - ... - FGNN(2)``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fgnn.errors import InputError

# The argument of each layer: a width, a rate, or none.
_TAKES = {"FGNN": "width", "FC": "width", "MLP": "width", "DR": "rate", "GlobalPooling": None, "Input": None}
_TOKEN = re.compile(
    r"(?P<skip>[\s$]+)|(?P<name>[A-Za-z_]+)|(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<mark>[()\[\]\-–—−])|(?P<bad>.)"
)
_DASHES = "-–—−"
# Far beyond any real network.
_MOST_CHARACTERS = 1 << 16
MOST_WIDTH = 1 << 14
_DEEPEST = 50


class NotationError(InputError):
    """A mistake in a network's notation.

    Attributes:
        line, column: Where it is, counted from 1.
        caret: The line with a caret below the mistake.
    """

    def __init__(self, what: str, text: str, at: int) -> None:
        before = text[:at]
        self.line = before.count("\n") + 1
        self.column = at - (before.rfind("\n") + 1) + 1
        shown = text.split("\n")[self.line - 1]
        self.caret = f"{shown}\n{' ' * (self.column - 1)}^"
        super().__init__(what, place=f"line {self.line}, column {self.column}")


@dataclass(frozen=True)
class Item:
    """One layer of the notation; ``body`` for Res, ``argument`` for the text in parentheses."""

    name: str
    argument: str | None = None
    body: tuple[Item, ...] = ()
    at: int = 0

    def __str__(self) -> str:
        if self.name == "Res":
            return f"Res[{to_text(self.body)}]"
        return self.name if self.argument is None else f"{self.name}({self.argument})"


def to_text(items: Sequence[Item]) -> str:
    """The notation in one line, as the paper prints it."""
    return " - ".join(map(str, items))


def parse(text: str) -> tuple[Item, ...]:
    """Read the notation; a mistake is reported with its place.

    Raises:
        NotationError: With line and column.
    """
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > _MOST_CHARACTERS:
            raise NotationError(f"Expected at most {_MOST_CHARACTERS} characters (got {len(text)})", text[:1], 0)
        self.text = text
        self.depth = 0
        self.tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text):
            kind, token, at = str(match.lastgroup), match.group(), match.start()
            if kind == "bad":
                raise NotationError(f"Expected a layer, '-' or a bracket (got {token!r})", text, at)
            if kind != "skip":
                self.tokens.append(("-" if token in _DASHES else token if kind == "mark" else kind, token, at))
        # A mistake at the end is marked right after the last token.
        self.tokens.append(("end", "the end", len(text.rstrip())))
        self.place = 0

    def read(self) -> tuple[Item, ...]:
        items = self.sequence()
        kind, token, at = self.tokens[self.place]
        if kind != "end":
            raise NotationError(f"Expected '-' or the end (got {token!r})", self.text, at)
        return items

    def next(self) -> tuple[str, str, int]:
        token = self.tokens[self.place]
        self.place += token[0] != "end"
        return token

    def expect(self, kind: str, what: str) -> str:
        actual, token, at = self.next()
        if actual != kind:
            raise NotationError(f"Expected {what} (got {token if actual == 'end' else repr(token)})", self.text, at)
        return token

    def sequence(self) -> tuple[Item, ...]:
        items = [self.item()]
        while self.tokens[self.place][0] == "-":
            self.next()
            items.append(self.item())
        return tuple(items)

    def item(self) -> Item:
        at = self.tokens[self.place][2]
        name = self.expect("name", f"a layer among {', '.join([*_TAKES, 'Res'])}")
        if name == "Res":
            self.expect("[", "'[' after Res")
            self.depth += 1
            if self.depth > _DEEPEST:
                raise NotationError(f"Expected Res at most {_DEEPEST} deep", self.text, at)
            body = self.sequence()
            self.depth -= 1
            self.expect("]", "'-' or ']' to close Res")
            return Item(name, body=body, at=at)
        if name not in _TAKES:
            raise NotationError(f"Expected a layer among {', '.join([*_TAKES, 'Res'])} (got {name!r})", self.text, at)
        if name == "Input" and self.place != 1:
            raise NotationError("Expected Input at the beginning only", self.text, at)
        takes = _TAKES[name]
        if takes is None:
            return Item(name, at=at)
        self.expect("(", f"'(' after {name}")
        argument = self.argument(name, takes)
        self.expect(")", f"')' after {name}({argument}")
        return Item(name, argument, at=at)

    def argument(self, name: str, takes: str) -> str:
        kind, token, at = self.next()
        if takes == "width":
            number = token.isdigit() and len(token) < 10 and 0 < int(token) <= MOST_WIDTH
            what, good = f"a width from 1 to {MOST_WIDTH:,}, or N,", token == "N" or number
        else:
            what, good = "a rate in [0, 1)", kind == "number" and float(token) < 1
        if not good:
            raise NotationError(f"Expected {what} in {name} (got {token})", self.text, at)
        return token
