"""Edges in dense slots, by factor and by variable, and gathers between nodes and slots whose adjoints are gathers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fgnn.graph import Incidence, padded_width, slots_by_target, tracing
from fgnn.nn.backends.linear import compiled

# Variables are padded to the largest degree, unless that makes more slots than this many per edge and variable.
_MOST_PADDING = 4


@dataclass(frozen=True, eq=False)
class Slots:
    """The edges of one group, sorted by the arity of their factor: all factors of one arity form one dense run.

    Attributes:
        runs: (number of factors, arity) of each run; slot a of factor c in a run is at c·A + a.
        order: (C,) the factors in the order of the runs; None where that is their own order.
        rank: (C,) the inverse of ``order``.
        variable: (E,) the variable of each slot.
        of_variable: (N, D) the slots of each variable, padded with 0; None where degrees differ too much for padding.
        mask: (N, D, 1) 0 where padded, else 1.
        position: (E,) the position of each slot among the N·D.
    """

    runs: tuple[tuple[int, int], ...]
    order: Tensor | None
    rank: Tensor | None
    variable: Tensor
    of_variable: Tensor | None
    mask: Tensor | None
    position: Tensor | None

    @classmethod
    def of(cls, incidence: Incidence) -> Slots:
        """The slots of a group's edges, made once and kept with them."""
        return incidence.derived("slots", lambda: cls._make(incidence))

    @classmethod
    def made(cls, incidence: Incidence) -> Slots | None:
        """The slots if they have been made."""
        slots: Slots | None = incidence.made("slots")
        return slots

    @classmethod
    def _make(cls, incidence: Incidence) -> Slots:
        order = rank = None
        variable = incidence.variable
        runs: tuple[tuple[int, int], ...] = ((incidence.num_factors, incidence.arity or 0),)
        if incidence.arity is None:
            arity = incidence.degree("factor")
            values, counts = torch.unique(arity, return_counts=True)
            runs = tuple(zip(counts.tolist(), values.tolist(), strict=True))
            if bool((arity.diff() < 0).any()):
                order = torch.argsort(arity, stable=True)
                rank = torch.argsort(order)
                variable = variable[torch.argsort(arity[incidence.factor], stable=True)]
        return cls(runs, order, rank, variable, *_by_variable(variable, incidence))

    def to_runs(self, g: Tensor) -> list[Tensor]:
        """Factor features (B, C, d) cut into runs."""
        g = g if self.order is None else g.index_select(1, self.order)
        return [g] if len(self.runs) == 1 else list(torch.split(g, [count for count, _ in self.runs], 1))

    def from_runs(self, parts: list[Tensor]) -> Tensor:
        """The inverse of :meth:`to_runs`."""
        g = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return g if self.rank is None else g.index_select(1, self.rank)

    def slots_by_run(self, x: Tensor) -> list[Tensor]:
        """Features of slots (B, E, d) as one (B, C, A·d) for each run."""
        parts = [x] if len(self.runs) == 1 else torch.split(x, [count * arity for count, arity in self.runs], 1)
        return [part.reshape(len(x), c, a * x.shape[2]) for part, (c, a) in zip(parts, self.runs, strict=True)]


def _by_variable(variable: Tensor, incidence: Incidence) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``of_variable``, ``mask`` and ``position`` of :class:`Slots`."""
    n, edges = incidence.num_variables, variable.numel()
    if n * padded_width(variable, n) > _MOST_PADDING * (n + edges):
        return None, None, None
    table = slots_by_target(variable, n)
    live = table < edges
    position = torch.empty_like(variable)
    position[table[live]] = live.flatten().nonzero().squeeze(1)
    return table.masked_fill(~live, 0), live.unsqueeze(2).float(), position


class _VariablesToSlots(torch.autograd.Function):
    """(B, N, d) to (B, E, d). The adjoint gathers and sums: atomics are slow on a GPU and add in no fixed order."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, variable: Tensor, of_variable: Tensor | None, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(variable, of_variable, mask)
        ctx.count = f.shape[1]
        return f.index_select(1, variable)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        variable, of_variable, mask = ctx.saved_tensors
        if of_variable is None or grad.device.type == "cpu":
            out = grad.new_zeros(grad.shape[0], ctx.count, grad.shape[2])
            return out.index_add_(1, variable, grad), None, None, None
        rows = grad.index_select(1, of_variable.reshape(-1)).view(grad.shape[0], *of_variable.shape, grad.shape[2])
        return (rows * mask.to(grad.dtype)).sum(2), None, None, None


class _SlotsToVariables(torch.autograd.Function):
    """(B, E, d) to (B, N·D, d). Each slot has one position there, so the adjoint is a gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, of_variable: Tensor, position: Tensor) -> Tensor:
        ctx.save_for_backward(position)
        return x.index_select(1, of_variable.reshape(-1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (position,) = ctx.saved_tensors
        return grad.index_select(1, position), None, None


def variables_to_slots(f: Tensor, slots: Slots) -> Tensor:
    """The features of each slot's variable.  # shape: (B, N, d) -> (B, E, d)"""
    if tracing() and not compiled():
        return f.index_select(1, slots.variable)
    gathered: Tensor = _VariablesToSlots.apply(f, slots.variable, slots.of_variable, slots.mask)  # type: ignore[no-untyped-call]
    return gathered


def relu_sum(x: Tensor, f: Tensor, slots: Slots) -> Tensor:
    """Σ ReLU(x_s + f_i) over the slots s of each variable i.  # shape: (B, E, d), (B, N, d) -> (B, N, d)"""
    if slots.of_variable is None or slots.mask is None:
        messages = (x + variables_to_slots(f, slots)).relu()
        return messages.new_zeros(messages.shape[0], *f.shape[1:]).index_add(1, slots.variable, messages)
    if tracing() and not compiled():
        gathered = x.index_select(1, slots.of_variable.reshape(-1))
    else:
        gathered = _SlotsToVariables.apply(x, slots.of_variable, slots.position)  # type: ignore[no-untyped-call]
    messages = gathered.view(x.shape[0], *slots.of_variable.shape, x.shape[2]) + f[:, :, None]
    return (messages.relu() * slots.mask.to(x.dtype)).sum(2)
