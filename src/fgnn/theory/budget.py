"""Lemma 1 for budgets: "between l and u of n binary variables are 1" as a maximum over few boxes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb

import torch

from fgnn.theory.decompose import Decomposition

_Box = tuple[frozenset[int], frozenset[int]]  # variables fixed to 1 and variables fixed to 0; the others are free


def decompose_budget(n: int, at_least: int = 0, at_most: int | None = None) -> Decomposition:
    r"""The factor that is 0 if ``at_least <= sum of x <= at_most`` and ``-inf`` otherwise, as a minimum cover by boxes.

    A box of feasible configurations fixes at least l = ``at_least`` variables to 1 and n - u to 0, u = ``at_most``. So
    it contains at most one configuration with l ones and at most one with u, and any cover has at least

    .. math:: \max\left(\binom{n}{l}, \binom{n}{u}\right)

    terms, compared with the :math:`2^n` entries of the table. This cover attains the bound: it uses the obvious boxes
    for "at most u", "at least l" and "exactly l", and otherwise one box per chain of subsets (see `_chain_boxes`).

    Args:
        n: The number of binary variables.
        at_least: The smallest number of ones.
        at_most: The largest number of ones (default: n).

    Example:
        >>> decompose_budget(8, at_most=5)
        Decomposition(2x2x2x2x2x2x2x2: 56 terms)
    """
    upper = n if at_most is None else min(at_most, n)
    if n < 1:
        raise ValueError(f"Expected a budget over at least one variable (got {n})")
    if not 0 <= at_least <= upper:
        raise ValueError(f"Expected 0 <= at_least <= at_most (got {at_least} and {upper})")
    boxes = _boxes(n, at_least, upper)
    sides = tuple(
        torch.tensor([[i not in ones for ones, _ in boxes], [i not in zeros for _, zeros in boxes]]) for i in range(n)
    )  # shape: (2, Z) each
    return Decomposition(sides, torch.zeros(len(boxes), dtype=torch.float64))


def split_budget(n: int, at_least: int, at_most: int) -> list[tuple[tuple[int, ...], ...]]:
    """Disjoint boxes that make up the feasible configurations: the states of each variable, by box.

    Variables are fixed one after another until all or none of what is left is feasible.
    """
    boxes: list[tuple[tuple[int, ...], ...]] = []

    def branch(fixed: tuple[tuple[int, ...], ...], ones: int) -> None:
        free = n - len(fixed)
        if ones > at_most or ones + free < at_least:
            return
        if ones >= at_least and ones + free <= at_most:
            boxes.append((*fixed, *[(0, 1)] * free))
            return
        branch((*fixed, (0,)), ones)
        branch((*fixed, (1,)), ones + 1)

    branch((), 0)
    return boxes


def _boxes(n: int, lower: int, upper: int) -> list[_Box]:
    if lower == 0:
        return [(frozenset(), frozenset(zeros)) for zeros in combinations(range(n), n - upper)]
    if upper == n:
        return [(frozenset(ones), frozenset()) for ones in combinations(range(n), lower)]
    return list(dict.fromkeys(_chain_boxes(n, lower, upper)))


def _chain_boxes(n: int, lower: int, upper: int) -> Iterator[_Box]:
    """One box per chain of the symmetric chain decomposition of the subsets, by bracket matching.

    Read 0 as an opening and 1 as a closing bracket. A chain keeps its matched pairs and fills the unmatched positions
    with ones from the left. Every chain that meets a level in lower..upper meets the widest one exactly once. A chain
    that starts above the lower level or ends below the upper one leaves a choice of variables to fix; choosing the
    pairs matched first makes the boxes of such chains coincide.
    """
    widest = max(range(lower, upper + 1), key=lambda r: comb(n, r))
    for ones in combinations(range(n), widest):
        selected = set(ones)
        opened: list[int] = []
        matched_ones, matched_zeros = [], []
        for i in range(n):
            if i not in selected:
                opened.append(i)
            elif opened:
                matched_zeros.append(opened.pop())
                matched_ones.append(i)
        unmatched = sorted(set(range(n)) - set(matched_ones) - set(matched_zeros))
        yield (
            frozenset((matched_ones + unmatched)[:lower]),
            frozenset((matched_zeros + unmatched[::-1])[: n - upper]),
        )
