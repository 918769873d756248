"""Equivalent models: their canonical form, so that reparametrised models look the same to a network, and their mirror
image, which lets a network read a model twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fgnn.graph import Structure
from fgnn.pgm import ModelBatch


def canonical(batch: ModelBatch) -> ModelBatch:
    """An equivalent batch of binary models whose 2 × 2 tables are zero except for the entry (1, 1).

    θ(x, y) = θ₀₀ + (θ₁₀ − θ₀₀) x + (θ₀₁ − θ₀₀) y + w xy with w = θ₁₁ − θ₁₀ − θ₀₁ + θ₀₀: the first term moves to the
    model's constant, the linear terms move to the unaries, and the table becomes [[0, 0], [0, w]]. Scores do not change
    beyond rounding. Other tables, and other models, are returned unchanged. Entries must be finite.
    """
    unary, constant, tables = batch.unary, batch.constant, []
    if batch.unary.shape[2] != 2:
        return batch
    for t in batch.tables:
        if t.shape != (2, 2):
            tables.append(t)
            continue
        v = t.distinct("values")
        v00, v01, v10, v11 = v[..., 0, 0], v[..., 0, 1], v[..., 1, 0], v[..., 1, 1]  # shape: (B, C)
        corner = torch.zeros_like(v)
        corner[..., 1, 1] = v11 - v10 - v01 + v00
        tables.append(replace(t, values=corner.expand(t.values.shape)))
        lift = torch.zeros_like(v[:, :1, 0, 0]).repeat(1, batch.num_variables)  # shape: (B, N)
        lift = lift.index_add(1, t.scopes[:, 0], v10 - v00).index_add(1, t.scopes[:, 1], v01 - v00)
        unary = unary + torch.stack([torch.zeros_like(lift), lift], -1)
        constant = constant + v00.sum(1)
    return replace(batch, unary=unary, tables=tuple(tables), constant=constant)


def mirrored(batch: ModelBatch) -> ModelBatch | None:
    """The same models with variable i renamed to N - 1 - i, in the same structure; None where the structure differs
    from its mirror image. Chains with windows have one (the chain reversed), and grids (turned by 180 degrees).

    None for structured factors too, whose kinds need not be the same from back to front.
    """
    if batch.structured:
        return None
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
