"""Cycles of pairs that tighten the dual: triangles and squares, ranked by how much they lower it at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import combinations, islice, takewhile

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.dual.layout import Layout

_MOST_CELLS = 4096  # of a cluster's table
_MOST_CANDIDATES = 50_000
Cycle = tuple[tuple[int, ...], tuple[int, ...]]  # the variables in order around the cycle, and the tables as nodes


def cycles(layout: Layout, deadline: float = math.inf) -> list[Cycle]:
    """Triangles and chordless squares of the pairs of a model, of at most 4,096 joint states each.

    At most 50,000, and those found until ``deadline``, by `time.perf_counter`.
    """
    pair: dict[tuple[int, int], int] = {}
    for n, scope in enumerate(layout.scopes[: layout.num_tables]):
        if len(scope) == 2:
            pair.setdefault((min(scope), max(scope)), layout.num_variables + n)
    neighbours: dict[int, list[int]] = {}
    for i, j in pair:
        neighbours.setdefault(i, []).append(j)
        neighbours.setdefault(j, []).append(i)
    sizes = np.diff(layout.start)

    def small(scope: tuple[int, ...]) -> bool:
        return bool(np.prod(sizes[list(scope)].astype(np.float64)) <= _MOST_CELLS)

    def cycle(scope: tuple[int, ...]) -> Cycle:
        ends = zip(scope, (*scope[1:], scope[0]), strict=True)
        return scope, tuple(pair[min(e), max(e)] for e in ends)

    in_time = takewhile(lambda _: time.perf_counter() < deadline, _around(pair, neighbours))
    return list(islice((cycle(scope) for scope in in_time if small(scope)), _MOST_CANDIDATES))


def _around(pair: dict[tuple[int, int], int], neighbours: dict[int, list[int]]) -> Iterator[tuple[int, ...]]:
    """The variables around each triangle, then around each square without a chord; each once."""
    sets = {i: set(others) for i, others in neighbours.items()}
    for i, j in pair:
        for k in sets[i] & sets[j]:
            if k > j:
                yield i, j, k
    for i, mine in sets.items():
        opposite = {k for j in neighbours[i] for k in neighbours[j] if k > i and k not in mine}
        for k in opposite:
            for j, m in combinations(sorted(mine & sets[k]), 2):
                if min(j, m) > i and m not in sets[j]:
                    yield i, j, k, m


def gains(layout: Layout, theta: NDArray[np.float64], candidates: list[Cycle]) -> NDArray[np.float64]:
    """How much a cluster would lower the dual at once: the sum of its pairs' maxima minus the maximum of their sum."""
    gain = np.zeros(len(candidates))
    groups: dict[tuple[tuple[int, ...], tuple[bool, ...]], list[int]] = {}
    sizes = np.diff(layout.start)
    for c, (scope, tables) in enumerate(candidates):
        flipped = tuple(layout.scopes[t - layout.num_variables][0] != i for t, i in zip(tables, scope, strict=True))
        groups.setdefault((tuple(sizes[list(scope)].tolist()), flipped), []).append(c)
    for (shape, flipped), which in groups.items():
        step = max(1, (1 << 22) // int(np.prod(shape)))
        for first in range(0, len(which), step):
            some = which[first : first + step]
            total = np.zeros((len(some), *shape))
            maxima = np.zeros(len(some))
            for e, turned in enumerate(flipped):
                a, b = e, (e + 1) % len(shape)
                starts = layout.start[[candidates[c][1][e] for c in some]]
                cells = theta[starts[:, None] + np.arange(shape[a] * shape[b])]
                values = cells.reshape(-1, shape[b], shape[a]).swapaxes(1, 2) if turned else cells.reshape(
                    -1, shape[a], shape[b]
                )  # fmt: skip
                maxima += cells.max(1)
                axes = [1] * len(shape)
                axes[a], axes[b] = shape[a], shape[b]
                total += (values if a < b else values.swapaxes(1, 2)).reshape(-1, *axes)
            with np.errstate(invalid="ignore"):
                gain[some] = maxima - total.reshape(len(some), -1).max(1)
    return np.nan_to_num(gain, nan=0.0, posinf=np.inf)
