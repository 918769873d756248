r"""The potentials of a group of factors in the layout of max-product, and the messages that they send.

With :math:`\nu_i` the incoming message of variable i,

.. math:: m_{c \to i}(x_i) = \max_{\hat x_c : \hat x_i = x_i} \Big[ \theta_c(\hat x_c)
    + \sum_{i' \in s(c), i' \ne i} \nu_{i'}(\hat x_{i'}) \Big]

The axes of tensors are states, factors of a group, models of a batch: (k, C, B). Messages have one of two forms.
*Ratios*, if no state is impossible: states 1..k-1 relative to state 0, which is 0 and not stored. *Full*: all k states,
with ``-inf`` for impossible ones.

Tables and intervals of the number of ones send their messages here; all other factors ask their kind. All answer the
same calls: ``send``, and for sum-product ``log_total``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from fgnn.infer.max_product.binary_pairs import PairClamp, PairSum
from fgnn.infer.max_product.wiring import Group, Out, filled, subtract_best
from fgnn.pgm import Kind
from fgnn.pgm.factors.ones import LIMIT, Bound, ones_messages, ones_ratios, ones_sums, ones_total
from fgnn.pgm.factors.tables import drop_axis, table_messages
from fgnn.pgm.group_batches import CountedBatch, FactorBatch


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

    def chosen(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        """The probability of each log-potential, shape (B, C, k_1, ..., k_A)."""
        joint, arity = self.theta, len(group.states)
        for axis, states in enumerate(_by_axis(group, nu, full)):
            joint = joint + states.reshape(*[1] * axis, states.shape[0], *[1] * (arity - axis - 1), *states.shape[1:])
        flat = joint.flatten(0, arity - 1).double()
        p = (flat - flat.logsumexp(0).clamp_min(torch.finfo(torch.float64).min)).exp()
        return p.view(*joint.shape).permute(arity + 1, arity, *range(arity))


@dataclass(frozen=True, eq=False)
class OnesPotentials:
    """Factors that allow an interval of the number of ones."""

    low: Bound
    high: Bound
    theta: Tensor | None  # shape: (T, C, B or 1), the log-potential of every number; of sum-product alone

    @classmethod
    def of(cls, factors: CountedBatch, dtype: torch.dtype, *, total: bool) -> OnesPotentials:
        bounds = factors.bounds()
        assert bounds is not None
        low, high = bounds[0], bounds[1].clamp(max=len(factors.shape))
        theta = None
        if total:  # larger numbers are not counted
            most = int(high.max()) if high.numel() else 0
            theta = factors.by_sum(dtype)[..., : most + 1].permute(2, 1, 0).contiguous()
        return cls(_bound(low), _bound(high), theta)

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        if total:
            sums = ones_sums(self._theta, _by_state(group, nu, full))
            if not full:
                return torch.sub(sums[:, 1], sums[:, 0], out=out)
            sums = torch.stack([subtract_best(m) for m in sums]) if normalise else sums
            return filled(out, sums.flatten(0, 1))
        if not full:
            return ones_ratios(nu, self.low, self.high, out=out)
        sent = ones_messages(_by_state(group, nu, full), self.low, self.high, normalise=normalise)
        return filled(out, sent.flatten(0, 1))

    def log_total(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        return ones_total(self._theta, _by_state(group, nu, full))

    def chosen(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        return torch.ones(nu.shape[2], len(group.scopes), 1, dtype=nu.dtype, device=nu.device)  # allowed is 0

    @property
    def _theta(self) -> Tensor:
        assert self.theta is not None
        return self.theta


@dataclass(frozen=True, eq=False)
class KindPotentials:
    """Factors whose messages their kind computes."""

    kind: Kind
    theta: Tensor  # shape: (S, C, B or 1), the log-potentials that they select from

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        return filled(out, self._messages(group, nu, normalise, total) if full else self._ratios(group, nu, total))

    def _ratios(self, group: Group, nu: Tensor, total: bool) -> Tensor:
        """Messages relative to state 0. They can diverge on loops and are clamped."""
        if max(group.states) == min(group.states) == 1:
            sent = self.kind.ratios(self.theta, nu, total=total)
        else:
            messages = self.kind.messages(self.theta, _by_axis(group, nu, full=False), total=total)
            sent = torch.cat([m[1:] - m[:1] for m in messages])
        limit = LIMIT[nu.dtype]
        return sent.clamp(-limit, limit) if sent.requires_grad else sent.clamp_(-limit, limit)

    def _messages(self, group: Group, nu: Tensor, normalise: bool, total: bool) -> Tensor:
        """Messages of all states; ``normalise`` sets the best state of each to 0."""
        sent = self.kind.messages(self.theta, _by_axis(group, nu, full=True), total=total)
        if not normalise:
            return torch.cat(sent)
        shifted = torch.cat([subtract_best(m) for m in sent])
        return torch.where(shifted == -torch.inf, shifted, shifted.clamp(min=-LIMIT[nu.dtype]))

    def log_total(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        incoming = _by_axis(group, nu, full=full)
        sent = self.kind.messages(self.theta, incoming, total=True)
        return (sent[0] + incoming[0]).logsumexp(0)

    def chosen(self, group: Group, nu: Tensor, *, full: bool) -> Tensor:
        """The probability of each log-potential, shape (B, C, S): the derivative of `log_total`."""
        with torch.enable_grad():
            theta = self.theta.detach().expand(-1, -1, nu.shape[2]).clone().requires_grad_()
            total = replace(self, theta=theta).log_total(group, nu.detach(), full=full).sum()
        if not total.requires_grad:  # a kind that only forbids or allows
            return torch.zeros_like(theta).permute(2, 1, 0).detach()
        (p,) = torch.autograd.grad(total, theta)
        return p.nan_to_num().permute(2, 1, 0)


Potentials = TablePotentials | PairClamp | PairSum | OnesPotentials | KindPotentials


def potentials_of(factors: FactorBatch, dtype: torch.dtype, *, full: bool, total: bool) -> Potentials:
    """The potentials of a group for max-product, or for sum-product if ``total``.

    Binary pairs have a form of their own where all messages are ratios and no gradients are needed.
    """
    if factors.form == "ones":
        return OnesPotentials.of(cast(CountedBatch, factors), dtype, total=total)
    values = factors.potentials(dtype)
    theta = values.permute(*range(2, values.dim()), 1, 0).contiguous()
    if factors.form == "other":
        return KindPotentials(factors.kind, theta)
    pair = None
    if factors.shape == (2, 2) and not full and not theta.requires_grad:
        pair = PairSum.of(theta) if total else PairClamp.of(theta)
    return TablePotentials(theta) if pair is None else pair


def with_totals(potentials: Potentials) -> TablePotentials | OnesPotentials | KindPotentials:
    """The same potentials of sum-product in a form that knows its totals: tables, for pairs."""
    assert not isinstance(potentials, PairClamp)
    return TablePotentials(potentials.theta) if isinstance(potentials, PairSum) else potentials


def _by_axis(group: Group, nu: Tensor, full: bool) -> list[Tensor]:
    """The incoming messages of all states, (k_a, C, B) by axis; state 0 has ratio 0."""
    parts = torch.split(nu, list(group.states))
    return list(parts) if full else [torch.nn.functional.pad(p, (0, 0, 0, 0, 1, 0)) for p in parts]


def _by_state(group: Group, nu: Tensor, full: bool) -> Tensor:
    """The incoming messages of binary variables (height, C, B) as (n, 2, C, B)."""
    if full:
        return nu.view(len(group.states), 2, *nu.shape[1:])
    return torch.stack([torch.zeros_like(nu), nu], 1)


def _bound(bound: Tensor) -> Bound:
    if bound.numel() and bool((bound == bound.flatten()[0]).all()):
        return int(bound.flatten()[0])
    return bound.t().contiguous()
