"""Tables of log-potentials, the general factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm.factors.gadget import Gadget, LocalTable
from fgnn.pgm.factors.kind import Array, Kind, Shape, StructuredGroup


@dataclass(frozen=True, eq=False)
class Table:
    """One factor θ_c: ``values[x_1, ..., x_A]`` is its log-potential at ``x_c`` (``-inf`` forbids)."""

    scope: tuple[int, ...]
    values: NDArray[np.float64]  # shape: (k_1, ..., k_A)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.scope == other.scope and np.array_equal(self.values, other.values)


class TableGroup(StructuredGroup):
    """Tables of a model whose axes have the same cardinalities."""

    @property
    def values(self) -> NDArray[np.float64]:
        """The log-potentials, (C, k_1, ..., k_A)."""
        return self.numbers["values"]


@dataclass(frozen=True)
class TableKind(Kind):
    """``values[x_1, ..., x_A]``: any factor, if its table is small enough. The potentials are the cells, S = ∏ k_a."""

    name: ClassVar[str] = "table"
    numbers: ClassVar[Mapping[str, type]] = {"values": float}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        if len(shape) < 2:
            raise ValueError(f"Expected tables over two or more variables (got {len(shape)})")
        if numbers["values"].shape[1:] != shape:
            raise ValueError(f"Expected tables of shape {shape} (got {numbers['values'].shape[1:]})")

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        return numbers["values"].flatten(2)

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        cell = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
        for axis, states in enumerate(shape):
            cell = cell * states + x[..., axis]
        return theta.expand(*cell.shape, theta.shape[-1]).gather(-1, cell[..., None]).squeeze(-1).double()

    def messages(self, theta: Tensor, nu: Sequence[Tensor], *, total: bool) -> list[Tensor]:
        return table_messages(theta.unflatten(0, [len(message) for message in nu]), nu, full=True, total=total)

    def best(self, shape: Shape, theta: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        joint = theta.unflatten(1, shape)
        for axis, states in enumerate(shape):
            joint = joint + nu[:, axis, :states].unflatten(1, [k if a == axis else 1 for a, k in enumerate(shape)])
        value, cell = joint.flatten(1).max(1)
        return value, torch.stack(torch.unravel_index(cell, shape), 1)

    def gadget(self, shape: Shape) -> Gadget:
        return Gadget((LocalTable(tuple(range(len(shape))), np.arange(prod(shape)).reshape(shape)),))


def table_messages(theta: Tensor, incoming: Sequence[Tensor], *, full: bool, total: bool = False) -> list[Tensor]:
    """Messages of tables to each of their axes, of all states or as *ratios*: states 1, 2, ... relative to state 0.

    Half of the axes are maximised out for the other half and vice versa, recursively: about four passes over the
    tables, whatever their arity. No message is added and subtracted again, so ``-inf`` is safe.

    Args:
        theta: Shape (k_1, ..., k_A, C, B); B may be 1 where all models share the tables.
        incoming: ν of each axis: (k_a, C, B) if ``full``, else ratios (k_a - 1, C, B).
        full: The form of the messages in and out. Full messages are not normalised.
        total: Whether to sum axes out (log-sum-exp, sum-product) instead of maximising over them.
    """
    out: list[Tensor] = [theta] * len(incoming)

    def descend(rest: Tensor, axes: list[int]) -> None:
        if len(axes) == 1:
            out[axes[0]] = rest if full else rest[1:] - rest[:1]
            return
        half = len(axes) // 2
        for keep, drop in ((axes[:half], axes[half:]), (axes[half:], axes[:half])):
            smaller = rest
            for a in reversed(drop):  # from the last, so that the positions of earlier axes stay
                smaller = drop_axis(smaller, axes.index(a), incoming[a], full=full, total=total)
            descend(smaller, keep)

    descend(theta, list(range(len(incoming))))
    return [m.expand(*m.shape[:-1], nu.shape[-1]) for m, nu in zip(out, incoming, strict=True)]


def drop_axis(theta: Tensor, axis: int, message: Tensor, *, full: bool, total: bool = False) -> Tensor:
    """Add a message along an axis, then maximise over it, or sum it out if ``total``."""
    states = theta.shape[axis]
    between = theta.dim() - axis - 3
    spread = message.reshape(message.shape[0], *[1] * between, *message.shape[1:])
    if full:
        joint = theta + spread
        return joint.logsumexp(axis) if total else joint.amax(axis)
    lowest = theta.select(axis, 0)
    if states == 1:
        return lowest
    if total:
        return torch.logaddexp(lowest, (theta.narrow(axis, 1, states - 1) + spread).logsumexp(axis))
    if states == 2:
        return torch.maximum(lowest, theta.select(axis, 1) + spread[0])
    return torch.maximum(lowest, (theta.narrow(axis, 1, states - 1) + spread).amax(axis))
