"""Sums over full tables of one model, compiled: one pass over the joint states of a step, nothing of their size stored.

The factors of a step are given as probabilities, up to a constant, with their strides over the axes of the step; a
stride of 0 stands for an axis that a factor does not have. Rows are the joint states of all axes but the last, and
`collapse` joins axes that every factor steps through alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fgnn.runtime.jit import compiled

# A row whose sum is below this may have lost terms to underflow.
_TINY = 1e-250


def collapse(cards: Any, strides: Any) -> tuple[Any, Any]:
    """The same loop with fewer axes: neighbouring row axes become one if that keeps every factor's offsets."""
    rows: list[tuple[int, list[int]]] = []
    for k, step in zip(cards[:-1].tolist(), strides[:, :-1].T.tolist(), strict=True):
        if k == 1:
            continue
        if rows and all(outer == k * inner for outer, inner in zip(rows[-1][1], step, strict=True)):
            rows[-1] = (rows[-1][0] * k, step)
        else:
            rows.append((k, step))
    rows = rows or [(1, [0] * len(strides))]
    rows.append((int(cards[-1]), strides[:, -1].tolist()))
    return np.array([k for k, _ in rows], np.int64), np.array([step for _, step in rows], np.int64).T.copy()


@compiled
def _start(first: Any, cards: Any, strides: Any, digits: Any, at: Any) -> None:  # pragma: no cover (compiled)
    """Set the digits of a row and the offset of each factor there."""
    row = first
    for axis in range(len(digits) - 1, -1, -1):
        digits[axis] = row % cards[axis]
        row //= cards[axis]
        for t in range(len(at)):
            at[t] += digits[axis] * strides[t, axis]


@compiled
def _next(cards: Any, strides: Any, digits: Any, at: Any) -> None:  # pragma: no cover (compiled)
    """Advance to the next row."""
    for axis in range(len(digits) - 1, -1, -1):
        digits[axis] += 1
        if digits[axis] < cards[axis]:
            for t in range(len(at)):
                at[t] += strides[t, axis]
            return
        digits[axis] = 0
        for t in range(len(at)):
            at[t] -= strides[t, axis] * (cards[axis] - 1)


@compiled
def sum_rows(
    a: Any, b: Any, c: Any, cards: Any, strides: Any, first: Any, out: Any
) -> bool:  # pragma: no cover (compiled)
    """Write the sums of the rows from ``first``, the start of a run, on; returns whether one may have underflowed.

    A run is the last axis of the rows: the loop over it has fixed strides.
    """
    axes = len(cards) - 1
    digits, at = np.zeros(axes - 1, np.int64), np.zeros(3, np.int64)
    run, choices = cards[axes - 1], cards[axes]
    _start(first // run, cards, strides, digits, at)
    i, j, k = strides[0, axes - 1], strides[1, axes - 1], strides[2, axes - 1]
    x, y, z = strides[0, axes], strides[1, axes], strides[2, axes]
    lost = False
    for row in range(0, len(out), run):
        f, g, h = at[0], at[1], at[2]
        for r in range(run):
            total = 0.0
            for s in range(choices):
                total += a[f + r * i + s * x] * b[g + r * j + s * y] * c[h + r * k + s * z]
            out[row + r] = total
        for r in range(run):
            if out[row + r] < _TINY:
                for s in range(choices):
                    some = a[f + r * i + s * x] > 0.0 and b[g + r * j + s * y] > 0.0 and c[h + r * k + s * z] > 0.0
                    lost = lost or some
        _next(cards, strides, digits, at)
    return lost


@compiled
def share_rows(
    a: Any, b: Any, c: Any, cards: Any, strides: Any, first: Any, adjoint: Any, da: Any, db: Any, dc: Any, used: Any
) -> None:  # pragma: no cover (compiled)
    """Spread the probability of each row over its choices, and add it to the entries of the factors."""
    axes = len(cards) - 1
    digits, at = np.zeros(axes - 1, np.int64), np.zeros(3, np.int64)
    run, choices = cards[axes - 1], cards[axes]
    _start(first // run, cards, strides, digits, at)
    i, j, k = strides[0, axes - 1], strides[1, axes - 1], strides[2, axes - 1]
    x, y, z = strides[0, axes], strides[1, axes], strides[2, axes]
    joint = np.empty(choices)
    for row in range(0, len(adjoint), run):
        f, g, h = at[0], at[1], at[2]
        for r in range(run):
            total = 0.0
            for s in range(choices):
                joint[s] = a[f + r * i + s * x] * b[g + r * j + s * y] * c[h + r * k + s * z]
                total += joint[s]
            scale = adjoint[row + r] / total if total > 0.0 else 0.0
            for s in range(choices):
                share = joint[s] * scale
                da[f + r * i + s * x] += share
                if used > 1:
                    db[g + r * j + s * y] += share
                if used > 2:
                    dc[h + r * k + s * z] += share
        _next(cards, strides, digits, at)
