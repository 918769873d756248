"""Explicit lists of joint states, packed into integers, and the joins that build them.

Lists are never built by enumerating all joint states. Lists of smaller scopes are joined on their shared variables, and
states that no allowed sum can complete are dropped as early as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
_WORD_BITS = 62
# Joins on keys of at most this many bits use a lookup table instead of a binary search.
_DIRECT_BITS = 20


class TooManyStates(Exception):
    """A list would be longer than allowed; ``count`` is its length."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} states")
        self.count = count


@dataclass(frozen=True, eq=False)
class States:
    """Distinct joint states of ``scope`` (ascending), one per row, with the state of each variable in its own bits.

    The first variable has the lowest bits; scopes of more than 62 bits take several words.
    """

    scope: tuple[int, ...]
    cardinalities: tuple[int, ...]
    words: NDArray[np.int64]  # shape: (S, W)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def bits(self) -> int:
        return sum(_bits(k) for k in self.cardinalities)

    @cached_property
    def places(self) -> dict[int, tuple[int, int, int]]:
        """The word, shift and number of bits of each variable."""
        return dict(zip(self.scope, _layout(self.cardinalities), strict=True))

    def column(self, variable: int) -> NDArray[np.int64]:
        """The state of one variable in every row, shape (S,)."""
        word, shift, bits = self.places[variable]
        return np.asarray((self.words[:, word] >> shift) & ((1 << bits) - 1))

    def renamed(self, scope: tuple[int, ...]) -> States:
        """The same list over other variables in the same order."""
        return States(scope, self.cardinalities, self.words)

    def take(self, rows: Rows) -> States:
        return States(self.scope, self.cardinalities, self.words[rows])

    def project(self, scope: Sequence[int]) -> NDArray[np.int64]:
        """The words of every row for a subset of the variables, shape (S, W'); rows may repeat."""
        cards = dict(zip(self.scope, self.cardinalities, strict=True))
        target = _layout([cards[i] for i in scope])
        words = np.zeros((len(self), 1 + max((w for w, _, _ in target), default=0)), dtype=np.int64)
        _move(words, self.words, [self.places[i] for i in scope], target)
        return words

    def sums(self, variables: Sequence[int], weights: Sequence[Sequence[int]] | None) -> NDArray[np.int64]:
        """The sum of the weights of these variables' states in every row, shape (S,); None: the number of ones."""
        if weights is None:
            return self._ones(variables)
        total = np.zeros(len(self), dtype=np.int64)
        for i, w in zip(variables, weights, strict=True):
            total += np.array(w)[self.column(i)]
        return total

    def _ones(self, variables: Sequence[int]) -> NDArray[np.int64]:
        masks: dict[int, int] = {}
        for i in variables:
            word, shift, _ = self.places[i]
            masks[word] = masks.get(word, 0) | (1 << shift)
        total = np.zeros(len(self), dtype=np.int64)
        for word, mask in masks.items():
            total += _popcount(self.words[:, word] & mask)
        return total


def all_states(scope: tuple[int, ...], cardinalities: tuple[int, ...], allowed: NDArray[np.bool_] | None) -> States:
    """All joint states of a small scope, or those a table allows (its axes in the order of ``scope``)."""
    cells = np.arange(int(np.prod(cardinalities))) if allowed is None else np.flatnonzero(allowed)
    if not cardinalities:
        return States((), (), np.zeros((len(cells), 1), dtype=np.int64))
    return pack(scope, cardinalities, np.unravel_index(cells, cardinalities))


def pack(scope: tuple[int, ...], cardinalities: tuple[int, ...], columns: Sequence[NDArray[Any]]) -> States:
    """Joint states from the states of each variable."""
    layout = _layout(cardinalities)
    words = np.zeros((len(columns[0]), 1 + max(w for w, _, _ in layout)), dtype=np.int64)
    for (word, shift, _), column in zip(layout, columns, strict=True):
        words[:, word] |= column.astype(np.int64) << shift
    return States(scope, cardinalities, words)


def join(left: States, right: States, limit: int) -> tuple[States, Rows, Rows]:
    """The natural join, and the row of each side that each of its rows comes from."""
    shared = [i for i in left.scope if i in right.places]
    if shared:
        left_key, right_key = _comparable(left.project(shared), right.project(shared))
        left_rows, right_rows = _match(left_key, right_key, limit)
    else:
        if len(left) * len(right) > limit:
            raise TooManyStates(len(left) * len(right))
        left_rows = np.repeat(np.arange(len(left)), len(right))
        right_rows = np.tile(np.arange(len(right)), len(left))
    cards = dict(zip(left.scope + right.scope, left.cardinalities + right.cardinalities, strict=True))
    scope = tuple(sorted(cards))
    layout = dict(zip(scope, _layout([cards[i] for i in scope]), strict=True))
    words = np.zeros((len(left_rows), 1 + max((w for w, _, _ in layout.values()), default=0)), dtype=np.int64)
    right_only = [i for i in right.scope if i not in left.places]
    sides = ((left, left.scope, left_rows), (right, right_only, right_rows))
    for side, variables, rows in sides:
        if variables:
            _move(words, side.words[rows], [side.places[i] for i in variables], [layout[i] for i in variables])
    return States(scope, tuple(cards[i] for i in scope), words), left_rows, right_rows


def sorted_rows(words: NDArray[np.int64]) -> Rows:
    """The rows in ascending order of their words; the last word is the most significant."""
    return np.argsort(words[:, 0], kind="stable") if words.shape[1] == 1 else np.lexsort(words.T)


def _bits(cardinality: int) -> int:
    return max(1, (cardinality - 1).bit_length())


def _layout(cardinalities: Sequence[int]) -> list[tuple[int, int, int]]:
    places = []
    word = shift = 0
    for k in cardinalities:
        bits = _bits(k)
        if shift + bits > _WORD_BITS:
            word, shift = word + 1, 0
        places.append((word, shift, bits))
        shift += bits
    return places


def _move(
    target: NDArray[np.int64],
    source: NDArray[np.int64],
    places: Sequence[tuple[int, int, int]],
    new_places: Sequence[tuple[int, int, int]],
) -> None:
    """Copy the bits at ``places`` of the source to ``new_places`` of the target; equal shifts are done at once."""
    masks: dict[tuple[int, int, int], int] = {}
    for (word, shift, bits), (new_word, new_shift, _) in zip(places, new_places, strict=True):
        move = (word, new_word, new_shift - shift)
        masks[move] = masks.get(move, 0) | (((1 << bits) - 1) << shift)
    for (word, new_word, by), mask in masks.items():
        moved = source[:, word] & mask
        target[:, new_word] |= moved << by if by >= 0 else moved >> -by


def _comparable(left: NDArray[np.int64], right: NDArray[np.int64]) -> tuple[Rows, Rows]:
    """One integer for each key; equal keys have equal integers."""
    if left.shape[1] == 1:
        return left[:, 0], right[:, 0]
    _, ids = np.unique(np.concatenate([left, right]), axis=0, return_inverse=True)
    ids = ids.reshape(-1)
    return ids[: len(left)], ids[len(left) :]


def _match(left: Rows, right: Rows, limit: int) -> tuple[Rows, Rows]:
    """All pairs of rows with equal keys, in the order of the left rows."""
    order = np.argsort(right, kind="stable")
    span = 1 + max(int(left.max(initial=0)), int(right.max(initial=0)))
    if span <= 1 << _DIRECT_BITS:
        start = np.concatenate([[0], np.cumsum(np.bincount(right, minlength=span))])
        first, last = start[left], start[left + 1]
    else:
        ordered = right[order]
        first, last = np.searchsorted(ordered, left, "left"), np.searchsorted(ordered, left, "right")
    counts = last - first
    total = int(counts.sum())
    if total > limit:
        raise TooManyStates(total)
    left_rows = np.repeat(np.arange(len(left)), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return left_rows, order[np.repeat(first, counts) + within]


def _popcount(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of set bits, by adding adjacent fields of 1, 2 and 4 bits, then all bytes at once."""
    x = words.astype(np.uint64)
    one, two, four = (np.uint64(m) for m in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
    x = x - ((x >> np.uint64(1)) & one)
    x = (x & two) + ((x >> np.uint64(2)) & two)
    x = (x + (x >> np.uint64(4))) & four
    return np.asarray((x * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)
