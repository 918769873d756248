"""The potentials of a batch in the layout of max-product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.map_tensors import map_tensors, take_models
from fgnn.infer.max_product.potentials import Potentials, potentials_of
from fgnn.infer.max_product.wiring import Group, Wiring
from fgnn.pgm import ModelBatch


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
        factors = (potentials_of(f, batch.dtype, full=wiring.full, total=total) for f in batch.factors)
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
    return potentials.send(group, nu, full=full, normalise=rule.normalise, total=rule.total, out=out)


def can_forbid(batch: ModelBatch) -> bool:
    """Whether a state can ever become impossible: there is a ``-inf``, or a constraint that leaves no choice."""
    if bool((batch.unary.isneginf() & batch.state_mask).any()):
        return True
    return any(f.can_forbid(batch.dtype) for f in batch.factors)


def _ratios(batch: ModelBatch) -> Tensor:
    """The unaries of states 1, 2, ... relative to state 0."""
    return (batch.unary[..., 1:] - batch.unary[..., :1])[:, batch.state_mask[:, 1:]]
