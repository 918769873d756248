"""The potentials of a batch in the layout of max-product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.map_tensors import map_tensors, take_models
from fgnn.infer.max_product.budget_sums import budget_sums
from fgnn.infer.max_product.messages import Bound, PairClamp, budget_messages, budget_ratios, table_messages
from fgnn.infer.max_product.pair_sums import PairSum
from fgnn.infer.max_product.structured import StructuredPotentials, forbids
from fgnn.infer.max_product.wiring import Group, Wiring, subtract_best
from fgnn.pgm import ModelBatch

# Potentials of a group: tables (k_1, ..., k_A, C, B or 1), binary pairs, bounds (at_least, at_most), or of a kind.
Potentials = Tensor | PairClamp | PairSum | tuple[Bound, Bound] | StructuredPotentials


@dataclass(frozen=True)
class Rule:
    """What a factor reads from a variable, and whether the best state of a message is set to 0.

    ``own=False`` excludes the factor's own message from the belief, as in textbooks; ``own=True`` reads the whole
    belief, as eq. (max_product) is printed. ``total=True`` sums over states (log-sum-exp) instead of maximising.
    """

    own: bool = False
    normalise: bool = True
    total: bool = False


@dataclass(frozen=True, eq=False)
class Numbers:
    """The potentials of some models for a `Wiring`. The models are the last axis, of length 1 where they share them."""

    unary: Tensor  # shape: (P, B) or (2P, B) with flags
    factors: tuple[Potentials, ...]  # by group

    @classmethod
    def of(cls, batch: ModelBatch, wiring: Wiring, *, total: bool = False) -> Numbers:
        """The numbers for max-product, or for sum-product if ``total``."""
        flat = batch.unary[:, batch.state_mask] if wiring.full else _ratios(batch)
        unary = flat.t().contiguous()  # shape: (P, B)
        if wiring.full:
            impossible = unary == -torch.inf
            unary = torch.cat([unary.masked_fill(impossible, 0.0), impossible.to(unary.dtype)])
        factors: list[Potentials] = []
        for t in batch.tables:
            theta = _models_last(t.distinct("values"))
            pair = None
            if t.shape == (2, 2) and not wiring.full and not theta.requires_grad:
                pair = PairSum.of(theta) if total else PairClamp.of(theta)
            factors.append(theta if pair is None else pair)
        factors += [(_bound(u.distinct("at_least")), _bound(u.distinct("at_most"))) for u in batch.budgets]
        factors += [StructuredPotentials.of(f, batch.dtype) for f in batch.structured]
        return cls(unary, tuple(factors))

    def columns(self, which: Tensor) -> Numbers:
        """The numbers of the models at an index tensor."""
        return Numbers(self.unary.index_select(1, which), take_models(self.factors, which))

    def some(self, group: int, factors: Tensor) -> Potentials:
        """The potentials of some factors of a group."""
        return map_tensors(self.factors[group], lambda tensor: tensor.index_select(-2, factors))


def group_messages(
    group: Group, potentials: Potentials, nu: Tensor, full: bool, rule: Rule, out: Tensor | None = None
) -> Tensor:
    """The messages that factors of a group send, as value rows: (height, C, B) in and out."""
    out = torch.empty_like(nu) if out is None else out
    if isinstance(potentials, PairClamp | PairSum):
        return potentials.ratios(nu, out)
    normalise = full and rule.normalise
    if isinstance(potentials, StructuredPotentials):
        if full:
            return out.copy_(potentials.messages(group, nu, normalise=normalise, total=rule.total))
        return out.copy_(potentials.ratios(group, nu, total=rule.total))
    if isinstance(potentials, Tensor):
        sent = table_messages(potentials, list(torch.split(nu, list(group.states))), full=full, total=rule.total)
        return torch.cat([subtract_best(m) for m in sent] if normalise else sent, out=out)
    if rule.total:
        sums = budget_sums(by_state(group, nu, full), *potentials)
        if not full:
            return torch.sub(sums[:, 1], sums[:, 0], out=out)
        sums = torch.stack([subtract_best(m) for m in sums]) if normalise else sums
        return out.copy_(sums.flatten(0, 1))
    if not full:
        return budget_ratios(nu, *potentials, out=out)
    return out.copy_(budget_messages(by_state(group, nu, full), *potentials, normalise=rule.normalise).flatten(0, 1))


def by_state(group: Group, nu: Tensor, full: bool) -> Tensor:
    """The incoming messages of budgets (height, C, B) as (n, 2, C, B)."""
    if full:
        return nu.view(len(group.states), 2, *nu.shape[1:])
    return torch.stack([torch.zeros_like(nu), nu], 1)


def can_forbid(batch: ModelBatch) -> bool:
    """Whether a state can ever become impossible: there is a ``-inf``, or a constraint that leaves no choice."""
    if bool((batch.unary.isneginf() & batch.state_mask).any()):
        return True
    if any(bool(t.distinct("values").isneginf().any()) for t in batch.tables):
        return True
    if any(bool(((u.at_most == 0) | (u.at_least == u.scopes.shape[1])).any()) for u in batch.budgets):
        return True
    return any(forbids(f, batch.dtype) for f in batch.structured)


def _ratios(batch: ModelBatch) -> Tensor:
    """The unaries of states 1, 2, ... relative to state 0."""
    return (batch.unary[..., 1:] - batch.unary[..., :1])[:, batch.state_mask[:, 1:]]


def _models_last(values: Tensor) -> Tensor:
    """(B, C, k_1, ..., k_A) to (k_1, ..., k_A, C, B)."""
    return values.permute(*range(2, values.dim()), 1, 0).contiguous()


def _bound(bound: Tensor) -> Bound:
    if bound.numel() and bool((bound == bound.flatten()[0]).all()):
        return int(bound.flatten()[0])
    return bound.t().contiguous()
