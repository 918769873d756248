"""Lemma 1: any factor as a maximum over few rank-1 terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fgnn.theory.cover import Box, additive_cover, fibre_cover, flat_cover, rank_one, single_cover

Pattern = tuple[tuple[tuple[int, ...], ...], ...]  # the states of a term's sides, by term and position
Slopes = tuple[tuple[int, ...], ...]  # the positions on which a term depends inside its box, by term


@dataclass(frozen=True, eq=False)
class Decomposition:
    r"""A factor as a maximum over rank-1 terms, eq. (lemma1):

    .. math:: \theta_c(x_c) = \max_{z} \sum_{i \in s(c)} \theta_{ic}(x_i, z)

    A term lives on a *box*, a set of states for each variable (its ``sides``), and is :math:`-\infty` outside:

    .. math:: \theta_{ic}(x_i, z) = v_z / |s(c)| + u_{ic}(x_i, z) \text{ if } x_i \in S_i^z,
              \quad -\infty \text{ otherwise.}

    A *flat* term has u = 0: it is constant on its box. A box may contain configurations of larger value, where the
    maximum hides its term. A configuration with value ``-inf`` lies in no box.
    """

    sides: tuple[Tensor, ...]  # per position, shape: (k_i, Z), bool: whether x_i lies in the box of term z
    values: Tensor  # v_z, shape: (Z,), float64
    offsets: tuple[Tensor, ...] | None = None  # u_ic, per position, shape: (k_i, Z); None if all terms are flat
    slopes: Slopes | None = None  # the positions with offsets, by term

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
        offsets = self.offsets or [torch.zeros_like(side, dtype=share.dtype) for side in self.sides]
        return tuple(torch.where(s, share + u, -torch.inf) for s, u in zip(self.sides, offsets, strict=True))

    @property
    def pattern(self) -> Pattern:
        """The boxes without their numbers: for every term and position, the states of the side."""
        return tuple(
            tuple(tuple(torch.nonzero(side[:, z])[:, 0].tolist()) for side in self.sides) for z in range(self.num_terms)
        )

    @property
    def comparisons(self) -> tuple[int, int]:
        """The maxima of two numbers in one iteration of the max-product network: towards the factor, and back."""
        slopes = self.slopes or ((),) * self.num_terms
        terms = list(enumerate(zip(self.pattern, slopes, strict=True)))
        # flat sides share their maxima, sides with offsets do not
        sides = {(side, (a, z) if a in slope else None) for z, (term, slope) in terms for a, side in enumerate(term)}
        to_variables = sum(int((side.sum(1) - 1).clamp_min(0).sum()) for side in self.sides)
        return sum(len(side) - 1 for side, _ in sides), to_variables

    def reconstruct(self) -> Tensor:
        """The factor's table, shape (k_1, ..., k_A), from its terms."""
        return maximum_of_terms(self.tensors)

    def __repr__(self) -> str:
        terms = "1 term" if self.num_terms == 1 else f"{self.num_terms} terms"
        return f"Decomposition({'x'.join(map(str, self.shape))}: {terms})"


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
    """Lemma 1: write a table of any arity as a maximum over few rank-1 terms.

    The paper takes one term per configuration. Fewer are enough: an additive table is one term, and since a line of
    the table along one variable is a term, there are at most ``table.size / max(table.shape)``, for a table of two
    variables min(k_1, k_2). The least number is NP-hard to find in general; a greedy search covers the table with flat
    boxes and with boxes on which it is additive, and the best of several such covers is returned.

    Flat terms and lines reconstruct the table exactly. Additive boxes reconstruct an entry to 32 units in the last
    place of its absolute value, or of 1 if that is larger.

    Args:
        table: Log-potentials of shape (k_1, ..., k_A), ``-inf`` allowed.
        merge: Whether to search for few terms; otherwise there is one per finite configuration.

    Example:
        >>> decompose([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
        Decomposition(2x3: 1 term)
    """
    return min(decompositions(table, merge=merge), key=lambda d: (d.num_terms, sum(d.comparisons)))


def decompositions(table: ArrayLike | Tensor, *, merge: bool = True) -> list[Decomposition]:
    """Several decompositions of a table: configurations, additive boxes, lines and, if values repeat, flat boxes."""
    theta = np.asarray(table.detach().cpu() if isinstance(table, Tensor) else table, dtype=np.float64)
    if theta.ndim == 0:
        raise ValueError("Expected a table over at least one variable (got a single number)")
    if np.isnan(theta).any() or np.isposinf(theta).any():
        raise ValueError("Expected finite or -inf log-potentials (got NaN or +inf)")
    covers = [single_cover(theta)]
    if merge:
        covers += [additive_cover(theta), fibre_cover(theta)]
        finite = theta[np.isfinite(theta)]
        if len(np.unique(finite)) < finite.size:  # otherwise every flat box is a single configuration
            covers.append(flat_cover(theta))
    return [_decomposition(torch.tensor(theta), boxes) for boxes in covers]


def _decomposition(theta: Tensor, boxes: Sequence[Box]) -> Decomposition:
    sides = [torch.zeros(k, len(boxes), dtype=torch.bool) for k in theta.shape]
    offsets = [torch.zeros(k, len(boxes), dtype=torch.float64) for k in theta.shape]
    values = torch.zeros(len(boxes), dtype=torch.float64)
    for z, box in enumerate(boxes):
        values[z], functions = rank_one(theta, box.states, box.slopes)
        for a, side in enumerate(box.states):
            sides[a][list(side), z] = True
        for a, u in zip(box.slopes, functions, strict=True):
            offsets[a][list(box.states[a]), z] = u
    slopes = tuple(box.slopes for box in boxes)
    return Decomposition(tuple(sides), values, tuple(offsets) if any(slopes) else None, slopes)
