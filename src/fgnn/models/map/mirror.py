"""Mirror images of models: where variable i may be renamed to N - 1 - i, a network can read a model twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fgnn.graph import Structure
from fgnn.pgm import ModelBatch


def mirrored(batch: ModelBatch) -> ModelBatch | None:
    """The same models with variable i renamed to N - 1 - i, in the same structure; None where the structure differs
    from its mirror image. Chains with windows have one (the chain reversed), and grids (turned by 180 degrees)."""
    orders = batch.structure.derived("mirror", lambda: _orders(batch.structure))
    if orders is None or any(t.shape != t.shape[::-1] for t in batch.tables):
        return None
    tables = [t.changed(len(batch), partial(_mirror, order=orders[f"table{k}"])) for k, t in enumerate(batch.tables)]
    budgets = [u.changed(len(batch), partial(_mirror, order=orders[f"budget{k}"])) for k, u in enumerate(batch.budgets)]
    return replace(batch, unary=batch.unary.flip(1), tables=tuple(tables), budgets=tuple(budgets))


def _mirror(numbers: Tensor, order: Tensor) -> Tensor:
    """Factors in their new order, with the axes of each table reversed.  # shape: (B, C, ...)"""
    axes = range(numbers.dim() - 1, 1, -1)
    return numbers.index_select(1, order).permute(0, 1, *axes).contiguous()


def _orders(structure: Structure) -> dict[str, Tensor] | None:
    """For each group the factor whose scope is the mirror image of each scope; None where some have none."""
    cards, last = structure.cardinalities, structure.num_variables - 1
    if cards is None or not torch.equal(cards, cards.flip(0)):
        return None
    orders = {}
    for name, group in structure.groups.items():
        factor = {tuple(scope): c for c, scope in enumerate(group.lists())}
        images = [factor.get(tuple(last - i for i in reversed(scope))) for scope in factor]
        if len(factor) != group.num_factors or None in images:
            return None
        orders[name] = torch.tensor(images, dtype=torch.int64, device=structure.device)
    return orders
