"""Covers of a table by boxes on which it is, or dominates, a sum of functions of one variable each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Table = NDArray[np.float64]
_Sides = list[NDArray[np.bool_]]


class Box(NamedTuple):
    """The states of each side, and the positions on which the term depends inside the box."""

    states: tuple[tuple[int, ...], ...]
    slopes: tuple[int, ...] = ()


def rank_one(theta: Tensor, states: Sequence[Sequence[int]], slopes: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
    """The term of a box: v and the functions u_a of the positions in ``slopes``, whose sum is at most θ on the box.

    Without slopes, v is the least entry of the box. Otherwise v = 0, and each u_a in turn is the largest function of
    x_a below what the earlier ones leave. If θ is the sum of such functions on the box, the sum of the u_a is θ.

    Args:
        theta: Tables, (..., k_1, ..., k_A).
        states: The box, by position.
        slopes: Positions in increasing order.

    Returns:
        v (...) and u_a (..., number of states of a) for each slope.
    """
    lead = theta.dim() - len(states)
    rest = theta
    for a, side in enumerate(states):
        rest = rest.index_select(lead + a, torch.as_tensor(side, device=theta.device))
    axes = [lead + a for a in range(len(states))]
    if not slopes:
        return rest.amin(axes), []
    functions = []
    for a in slopes:
        others = [axis for axis in axes if axis != lead + a]
        u = rest.amin(others, keepdim=True) if others else rest
        functions.append(u.reshape(*theta.shape[:lead], -1))
        rest = rest - u
    return theta.new_zeros(theta.shape[:lead]), functions


def rounding(theta: Tensor, dims: int) -> Tensor:
    """How far a sum of terms may be from each entry θ: 32 units in the last place of max(|θ|, 1).

    In a table without an entry as large as 1, the largest takes its place. The last ``dims`` axes are the table's.
    """
    size = theta.abs().masked_fill(theta.isinf(), 0.0)
    largest = size.flatten(-dims).amax(-1).reshape(*theta.shape[:-dims], *(1,) * dims)
    return 2.0**-47 * torch.maximum(size, largest.clamp_max(1.0))


def single_cover(theta: _Table) -> list[Box]:
    """One box per finite configuration, as in the paper."""
    return [Box(tuple((int(x),) for x in cell)) for cell in np.argwhere(np.isfinite(theta))]


def fibre_cover(theta: _Table) -> list[Box]:
    """One box per line along the variable with the most states: at most size / max(shape) terms, all exact."""
    axis = int(np.argmax(theta.shape))
    boxes = []
    for cell in product(*(range(1 if a == axis else k) for a, k in enumerate(theta.shape))):
        line = _line(theta, cell, axis)
        states = tuple(np.flatnonzero(np.isfinite(line)).tolist())
        if states:
            sides = tuple(states if a == axis else (x,) for a, x in enumerate(cell))
            boxes.append(Box(sides, (axis,) if len(states) > 1 else ()))
    return boxes


def flat_cover(theta: _Table) -> list[Box]:
    """Flat boxes, greedily: in order of increasing value, a box grows around an uncovered configuration as long as it
    contains no lower value, then shrinks to the configurations it newly covers."""
    boxes: list[Box] = []
    uncovered = np.isfinite(theta)
    for flat in np.argsort(theta, axis=None, kind="stable").tolist():
        cell = np.unravel_index(flat, theta.shape)
        if uncovered[cell]:
            sides, gained = _flat_box(theta, uncovered, cell)
            uncovered &= ~gained
            boxes.append(_box(sides))
    return sorted(boxes)


def additive_cover(theta: _Table) -> list[Box]:
    """Flat and additive boxes, greedily: of the candidates around the least uncovered entry, the one that covers most.

    An additive box starts as a line through the entry, along each variable in turn, and takes in further states of the
    other variables as long as the table stays additive on it.
    """
    boxes: list[Box] = []
    uncovered = np.isfinite(theta)
    near = rounding(torch.tensor(theta), theta.ndim).numpy()
    for flat in np.argsort(theta, axis=None, kind="stable").tolist():
        cell = np.unravel_index(flat, theta.shape)
        if not uncovered[cell]:
            continue
        candidates = [_additive_box(theta, near, cell, axis) for axis in range(theta.ndim)]
        gains = [int(uncovered[np.ix_(*sides)].sum()) for sides in candidates]
        best = int(np.argmax(gains))
        sides, gained = _flat_box(theta, uncovered, cell)
        if gains[best] >= int(gained.sum()):
            sides = candidates[best]
            gained = np.zeros_like(uncovered)
            gained[np.ix_(*sides)] = True
            boxes.append(_sloped(theta, near, sides))
        else:
            boxes.append(_box(sides))
        uncovered &= ~gained
    return sorted(boxes)  # tables with the same boxes share weights, whatever the order of their values


def _line(theta: _Table, cell: Sequence[int | np.intp], axis: int) -> _Table:
    """The entries along one axis through a cell."""
    line: _Table = np.moveaxis(theta, axis, 0)[:, *(x for a, x in enumerate(cell) if a != axis)]
    return line


def _box(sides: _Sides, slopes: tuple[int, ...] = ()) -> Box:
    return Box(tuple(tuple(np.flatnonzero(side).tolist()) for side in sides), slopes)


def _additive_box(theta: _Table, near: _Table, cell: tuple[np.intp, ...], axis: int) -> _Sides:
    """The finite entries of the line through a cell, extended by states on which the table stays additive."""
    line = _line(theta, cell, axis)
    sides = [np.isfinite(line) if a == axis else np.arange(k) == cell[a] for a, k in enumerate(theta.shape)]
    for a, k in enumerate(theta.shape):
        for state in range(k):
            if a == axis or sides[a][state]:
                continue
            sides[a][state] = True
            if not _is_additive(theta, near, sides):
                sides[a][state] = False
    return sides


def _is_additive(theta: _Table, near: _Table, sides: _Sides, slopes: Sequence[int] | None = None) -> bool:
    """Whether the table is a sum of functions of the positions in ``slopes`` (all by default) on a box."""
    box = theta[np.ix_(*sides)]
    if not np.isfinite(box).all():
        return False
    slopes = range(box.ndim) if slopes is None else slopes
    total, rest = np.zeros_like(box), box
    for a in slopes:
        u = rest.min(axis=tuple(b for b in range(box.ndim) if b != a), keepdims=True)
        total, rest = total + u, rest - u
    total = total if len(slopes) else total + box.min()
    return bool((np.abs(total - box) <= near[np.ix_(*sides)]).all())


def _sloped(theta: _Table, near: _Table, sides: _Sides) -> Box:
    """An additive box with the fewest positions on which its term depends."""
    slopes = [a for a, side in enumerate(sides) if side.sum() > 1]
    for a in tuple(slopes):
        fewer = [b for b in slopes if b != a]
        if _is_additive(theta, near, sides, fewer):
            slopes = fewer
    return _box(sides, tuple(slopes))


def _flat_box(
    theta: _Table, uncovered: NDArray[np.bool_], cell: tuple[np.intp, ...]
) -> tuple[_Sides, NDArray[np.bool_]]:
    """A box of entries at least as large as the cell's, and the equal ones that it newly covers."""
    value = theta[cell]
    wanted = uncovered & (theta == value)
    box = np.ix_(*_grow(theta >= value, wanted, cell))
    gained = np.zeros_like(wanted)
    gained[box] = wanted[box]
    # Shrink to the bounding box of the newly covered cells: smaller sides give smaller networks.
    others = [tuple(a for a in range(theta.ndim) if a != axis) for axis in range(theta.ndim)]
    return [gained.any(axis=rest) for rest in others], gained


def _grow(allowed: NDArray[np.bool_], wanted: NDArray[np.bool_], cell: tuple[np.intp, ...]) -> _Sides:
    """A maximal box around a cell; each step adds the state that covers the most wanted cells."""
    sides = [np.arange(k) == x for k, x in zip(allowed.shape, cell, strict=True)]
    while True:
        best: tuple[int, int, int] | None = None
        for axis, side in enumerate(sides):
            slab = np.ix_(*sides[:axis], np.ones_like(side), *sides[axis + 1 :])  # the box with this axis free
            rest = tuple(a for a in range(len(sides)) if a != axis)
            fits = allowed[slab].all(axis=rest) & ~side
            gain = wanted[slab].sum(axis=rest)
            for state in np.nonzero(fits)[0].tolist():
                if best is None or gain[state] > best[0]:
                    best = (int(gain[state]), axis, state)
        if best is None:
            return sides
        sides[best[1]][best[2]] = True
