"""Lemma 1: any factor as a maximum over few rank-1 terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""A factor as a maximum over rank-1 terms, eq. (lemma1):

    .. math:: \theta_c(x_c) = \max_{z} \sum_{i \in s(c)} \theta_{ic}(x_i, z)

    Every term is a *box*: a set of states for each variable (its ``sides``) and one value, with

    .. math:: \theta_{ic}(x_i, z) = v_z / |s(c)| \text{ if } x_i \in S_i^z, \quad -\infty \text{ otherwise.}

    Boxes may overlap: a box may contain configurations of larger value, where the maximum hides its term. A
    configuration with value ``-inf`` lies in no box.
    """

    sides: tuple[Tensor, ...]  # per position, shape: (k_i, Z), bool: whether x_i lies in the box of term z
    values: Tensor  # shape: (Z,), float64

    @property
    def num_terms(self) -> int:
        """Z, the number of values of the auxiliary variable z."""
        return int(self.values.shape[0])

    @property
    def arity(self) -> int:
        return len(self.sides)

    @property
    def shape(self) -> tuple[int, ...]:
        """The cardinalities of the factor's variables."""
        return tuple(int(side.shape[0]) for side in self.sides)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """θ_ic(x_i, z), one tensor of shape (k_i, Z) per position of the factor."""
        share = self.values / self.arity
        return tuple(torch.where(side, share, -torch.inf) for side in self.sides)

    @property
    def pattern(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The boxes without their values: for every term and position, the states of the side."""
        return tuple(
            tuple(tuple(torch.nonzero(side[:, z])[:, 0].tolist()) for side in self.sides) for z in range(self.num_terms)
        )

    def reconstruct(self) -> Tensor:
        """The factor's table, shape (k_1, ..., k_A), from its terms."""
        return maximum_of_terms(self.tensors)

    def __repr__(self) -> str:
        return f"Decomposition({'x'.join(map(str, self.shape))}: {self.num_terms} terms)"


def maximum_of_terms(tensors: Sequence[Tensor]) -> Tensor:
    """max_z Σ_i θ_ic(x_i, z) for tensors (k_i, Z): the table (k_1, ..., k_A), ``-inf`` if there are no terms."""
    total = torch.zeros((1,) * len(tensors) + (tensors[0].shape[1],), dtype=tensors[0].dtype)
    for axis, theta in enumerate(tensors):
        shape = [1] * len(tensors) + [theta.shape[1]]
        shape[axis] = theta.shape[0]
        total = total + theta.reshape(shape)
    if not total.shape[-1]:
        return torch.full(total.shape[:-1], -torch.inf, dtype=total.dtype)
    return total.amax(-1)


def decompose(table: ArrayLike | Tensor, *, merge: bool = True) -> Decomposition:
    """Lemma 1: write a table of any arity exactly as a maximum over rank-1 terms.

    A table of distinct values needs one term per finite entry, the number in the paper. If values repeat, boxes cover
    the configurations greedily: in order of increasing value, a box grows around an uncovered configuration as long
    as it contains no lower value, then shrinks to the configurations it newly covers.

    Args:
        table: Log-potentials of shape (k_1, ..., k_A), ``-inf`` allowed.
        merge: Whether to search for boxes; otherwise there is one term per finite configuration.
    """
    theta = np.asarray(table.detach().cpu() if isinstance(table, Tensor) else table, dtype=np.float64)
    if theta.ndim == 0:
        raise ValueError("Expected a table over at least one variable (got a single number)")
    if np.isnan(theta).any() or np.isposinf(theta).any():
        raise ValueError("Expected finite or -inf log-potentials (got NaN or +inf)")
    if merge:
        boxes = _cover(theta)
    else:
        boxes = [
            ([np.arange(k) == x for k, x in zip(theta.shape, cell, strict=True)], float(theta[tuple(cell)]))
            for cell in np.argwhere(np.isfinite(theta))
        ]
    sides = tuple(
        torch.tensor(np.array([box[axis] for box, _ in boxes], dtype=bool).reshape(len(boxes), k).T.copy())
        for axis, k in enumerate(theta.shape)
    )
    return Decomposition(sides, torch.tensor([value for _, value in boxes], dtype=torch.float64))


_Box = tuple[list[NDArray[np.bool_]], float]


def _cover(theta: NDArray[np.float64]) -> list[_Box]:
    """Boxes such that every finite cell equals the largest value of the boxes that contain it."""
    boxes: list[_Box] = []
    uncovered = np.isfinite(theta)
    order = np.argsort(theta, axis=None, kind="stable")
    for flat in order.tolist():
        cell = np.unravel_index(flat, theta.shape)
        if not uncovered[cell]:
            continue
        value = float(theta[cell])
        wanted = uncovered & (theta == value)
        box = np.ix_(*_grow(theta >= value, wanted, cell))
        gained = np.zeros_like(wanted)
        gained[box] = wanted[box]
        # Shrink to the bounding box of the newly covered cells: smaller sides give smaller networks.
        others = [tuple(a for a in range(theta.ndim) if a != axis) for axis in range(theta.ndim)]
        sides = [gained.any(axis=rest) for rest in others]
        uncovered &= ~gained
        boxes.append((sides, value))
    return boxes


def _grow(allowed: NDArray[np.bool_], wanted: NDArray[np.bool_], cell: tuple[np.intp, ...]) -> list[NDArray[np.bool_]]:
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
