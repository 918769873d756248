"""The potentials of a group of factors in the layout of max-product, and the messages that they send.

Tables, budgets and structured kinds answer the same calls: ``send``, and for sum-product ``log_total``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.budget_sums import budget_sums, budget_total
from fgnn.infer.max_product.messages import (
    Bound,
    PairClamp,
    budget_messages,
    budget_ratios,
    drop_axis,
    table_messages,
)
from fgnn.infer.max_product.pair_sums import PairSum
from fgnn.infer.max_product.structured import StructuredPotentials
from fgnn.infer.max_product.wiring import Group, Out, filled, subtract_best
from fgnn.pgm import TableBatch
from fgnn.pgm.group_batches import BudgetBatch, FactorBatch


@dataclass(frozen=True, eq=False)
class TablePotentials:
    """Tables of one shape."""

    theta: Tensor  # shape: (k_1, ..., k_A, C, B or 1)

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        """The messages of the factors as value rows, (height, C, B) in and out; differentiable without ``out``."""
        sent = table_messages(self.theta, list(torch.split(nu, list(group.states))), full=full, total=total)
        return torch.cat([subtract_best(m) for m in sent] if full and normalise else sent, out=out)

    def log_total(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        """log Σ exp of the factors and their incoming messages over all joint states, shape (C, B)."""
        total, incoming = self.theta, torch.split(nu, list(group.states))
        for axis in reversed(range(len(incoming))):
            total = drop_axis(total, axis, incoming[axis], full=full, total=True)
        return total

    def joint(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        """p(x_c) of each factor, shape (B, C, k_1, ..., k_A)."""
        joint, arity = self.theta, len(group.states)
        for axis, message in enumerate(torch.split(nu, list(group.states))):
            states = message if full else torch.nn.functional.pad(message, (0, 0, 0, 0, 1, 0))  # state 0 has ratio 0
            joint = joint + states.reshape(*[1] * axis, states.shape[0], *[1] * (arity - axis - 1), *states.shape[1:])
        flat = joint.flatten(0, arity - 1).double()
        p = (flat - flat.logsumexp(0).clamp_min(torch.finfo(torch.float64).min)).exp()
        return p.view(*joint.shape).permute(arity + 1, arity, *range(arity))


@dataclass(frozen=True, eq=False)
class BudgetPotentials:
    """Budgets over the same number of variables."""

    at_least: Bound
    at_most: Bound

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        bounds = self.at_least, self.at_most
        if total:
            sums = budget_sums(_by_state(group, nu, full), *bounds)
            if not full:
                return torch.sub(sums[:, 1], sums[:, 0], out=out)
            sums = torch.stack([subtract_best(m) for m in sums]) if normalise else sums
            return filled(out, sums.flatten(0, 1))
        if not full:
            return budget_ratios(nu, *bounds, out=out)
        sent = budget_messages(_by_state(group, nu, full), *bounds, normalise=normalise)
        return filled(out, sent.flatten(0, 1))

    def log_total(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        return budget_total(_by_state(group, nu, full), self.at_least, self.at_most)


Potentials = TablePotentials | PairClamp | PairSum | BudgetPotentials | StructuredPotentials


def potentials_of(factors: FactorBatch, dtype: torch.dtype, *, full: bool, total: bool) -> Potentials:
    """The potentials of a group for max-product, or for sum-product if ``total``. Only this function asks for its form.

    Binary pairs have a form of their own where all messages are ratios and no gradients are needed.
    """
    if isinstance(factors, TableBatch):
        values = factors.distinct("values")
        theta = values.permute(*range(2, values.dim()), 1, 0).contiguous()
        pair = None
        if factors.shape == (2, 2) and not full and not theta.requires_grad:
            pair = PairSum.of(theta) if total else PairClamp.of(theta)
        return TablePotentials(theta) if pair is None else pair
    if isinstance(factors, BudgetBatch):
        return BudgetPotentials(_bound(factors.distinct("at_least")), _bound(factors.distinct("at_most")))
    return StructuredPotentials.of(factors, dtype)


def with_totals(potentials: Potentials) -> TablePotentials | BudgetPotentials | StructuredPotentials:
    """The same potentials of sum-product in a form that knows its totals: tables, for pairs."""
    assert not isinstance(potentials, PairClamp)
    return TablePotentials(potentials.theta) if isinstance(potentials, PairSum) else potentials


def _by_state(group: Group, nu: Tensor, full: bool) -> Tensor:
    """The incoming messages of budgets (height, C, B) as (n, 2, C, B)."""
    if full:
        return nu.view(len(group.states), 2, *nu.shape[1:])
    return torch.stack([torch.zeros_like(nu), nu], 1)


def _bound(bound: Tensor) -> Bound:
    if bound.numel() and bool((bound == bound.flatten()[0]).all()):
        return int(bound.flatten()[0])
    return bound.t().contiguous()
