"""A model read backwards: where its structure is its own mirror image, a second reading by the same network."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fgnn.pgm import BudgetBatch, ModelBatch, TableBatch


def mirrored(batch: ModelBatch) -> ModelBatch | None:
    """The same models with variable i renamed to N - 1 - i, in the scopes they have now; None where these scopes are
    not their own mirror image. Chains with windows are (read from the other end), and grids (turned by half)."""
    last = batch.num_variables - 1
    if not torch.equal(batch.cardinalities, batch.cardinalities.flip(0)):
        return None
    tables, budgets = [], []
    for t in batch.tables:
        order = _order(t.scopes, last)
        if order is None or t.shape != t.shape[::-1]:
            return None
        axes = range(2 + len(t.shape) - 1, 1, -1)
        tables.append(TableBatch(t.scopes, t.values[:, order].permute(0, 1, *axes).contiguous()))
    for u in batch.budgets:
        order = _order(u.scopes, last)
        if order is None:
            return None
        budgets.append(BudgetBatch(u.scopes, u.at_least[:, order], u.at_most[:, order]))
    return replace(batch, unary=batch.unary.flip(1), tables=tuple(tables), budgets=tuple(budgets))


def _order(scopes: Tensor, last: int) -> Tensor | None:
    """For each scope the place of its mirror image; None where some have none."""
    image = (last - scopes).flip(1)
    known = {tuple(scope): place for place, scope in enumerate(scopes.tolist())}
    places = [known.get(tuple(scope)) for scope in image.tolist()]
    if len(known) != len(places) or None in places:
        return None
    return torch.tensor(places, dtype=torch.int64, device=scopes.device)
