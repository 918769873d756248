"""The numbers of a batch in the layout of `ad3`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout, TableLayout
from fgnn.pgm import ModelBatch

PUSH = 1e4  # added to the target of a variable with one allowed state: it then projects to that state


@dataclass(frozen=True, eq=False)
class PairNumbers:
    r"""θ = const + α u + β v + γ [u v], rewritten for the closed form: see `steps.project_pairs`."""

    alpha: Tensor  # shape: (C, B)
    beta: Tensor  # shape: (C, B)
    gamma: Tensor  # shape: (C, B)


@dataclass(frozen=True, eq=False)
class BudgetNumbers:
    """How many ones each budget asks for at least, and allows at most."""

    low: Tensor  # shape: (C, 1, B)
    high: Tensor  # shape: (C, 1, B)


@dataclass(frozen=True, eq=False)
class Numbers:
    """One chunk of models. Potentials are divided by ``scale``; forbidden states are masked out everywhere."""

    unary: Tensor  # shape: (V, B), binary: θ(1) - θ(0) with 0 where a state is forbidden; others: θ with -inf
    lower: Tensor | None  # shape: (Vb, B), of p(1); None: no state of a binary variable is forbidden
    upper: Tensor | None  # shape: (Vb, B)
    push: Tensor | None  # shape: (E, B)
    pairs: tuple[PairNumbers, ...]
    tables: tuple[Tensor, ...]  # shape: (C, k_1, ..., k_A, B) each
    budgets: tuple[BudgetNumbers, ...]
    constant: Tensor  # shape: (B,)
    scale: Tensor  # shape: (B,)
    hopeless: Tensor  # shape: (B,), bool: some factor or variable allows nothing

    def map(self, change: Callable[[Tensor], Tensor]) -> Numbers:
        """The same with every tensor changed."""
        return Numbers(
            change(self.unary),
            None if self.lower is None else change(self.lower),
            None if self.upper is None else change(self.upper),
            None if self.push is None else change(self.push),
            tuple(PairNumbers(change(x.alpha), change(x.beta), change(x.gamma)) for x in self.pairs),
            tuple(change(x) for x in self.tables),
            tuple(BudgetNumbers(change(x.low), change(x.high)) for x in self.budgets),
            change(self.constant),
            change(self.scale),
            change(self.hopeless),
        )

    def select(self, which: Tensor) -> Numbers:
        """The models at ``which``."""
        return self.map(lambda x: x.index_select(x.dim() - 1, which))

    def to(self, dtype: torch.dtype) -> Numbers:
        """In another floating-point type."""
        return self.map(lambda x: x.to(dtype) if x.is_floating_point() else x)


def build_numbers(batch: ModelBatch, layout: Layout, scale: Tensor | None = None) -> Numbers:
    """Transpose a (chunk of a) batch into the layout, in float64, divided by a scale (B,): the factors' mean range."""
    dtype = torch.float64
    unary = batch.unary.double().clone()
    constant = batch.constant.double().clone()
    for group, which, kept in layout.dropped:  # tables of at most one real axis are unaries or constants
        t = batch.tables[group]
        values = t.values[:, which].double().flatten(2)  # shape: (B, C, k)
        if kept:
            unary[:, :, : values.shape[2]].index_add_(1, t.scopes[which, kept[0]], values)
        else:
            constant += values.sum((1, 2))
    alone = layout.row < 0
    constant += unary[:, alone, 0].sum(1)
    allowed = unary > -torch.inf
    hopeless = ~allowed.any(2).all(1) | (constant == -torch.inf)

    two = unary[:, layout.binary, :2]
    zero, one = allowed[:, layout.binary, 0], allowed[:, layout.binary, 1]
    base = torch.where(zero, two[..., 0], 0.0)
    constant = constant + base.sum(1)
    # Where only state 1 is allowed its p is fixed to 1, so that the difference to nothing is θ(1) itself.
    rows = [torch.where(one, two[..., 1], 0.0) - base]
    restricted = bool((~zero).any() | (~one).any())
    lower = (~zero).to(dtype).T.contiguous() if restricted else None
    upper = one.to(dtype).T.contiguous() if restricted else None
    if lower is not None and upper is not None:
        upper = torch.maximum(upper, lower)  # only where hopeless
    for k, members, _ in layout.many:
        rows.append(unary[:, members, :k].flatten(1))
    theta = torch.cat(rows, 1).T  # shape: (V, B)

    pairs = []
    for x in layout.pairs:
        v = batch.tables[x.group].values[:, x.tables].double().flatten(2).permute(2, 1, 0)  # shape: (4, C, B)
        constant = constant + v[0].sum(0)
        pairs.append((v[2] - v[0], v[1] - v[0], v[3] - v[2] - v[1] + v[0]))
    tables = []
    for y in layout.tables:
        t = batch.tables[y.group]
        v = t.values[:, y.tables].double().flatten(2).permute(1, 2, 0).reshape(len(y.tables), *y.shape, len(batch))
        kept_axes = [a for a, k in enumerate(t.shape) if k > 1]
        for a, axis in enumerate(kept_axes):  # a cell with a forbidden state is forbidden
            ok = allowed[:, t.scopes[y.tables, axis], : y.shape[a]].permute(1, 2, 0)  # shape: (C, k, B)
            v = v.masked_fill(~_along(ok, y, a), -torch.inf)
        peak = v.amax(tuple(range(1, v.dim() - 1)))  # shape: (C, B)
        hopeless = hopeless | (peak == -torch.inf).any(0)
        tables.append(v)
    budgets = []
    for u in layout.budgets:
        of = batch.budgets[u.group]
        ones = (~allowed[:, of.scopes, 0]).sum(2)  # shape: (B, C)
        most = allowed[:, of.scopes, 1].sum(2)
        hopeless = hopeless | ((ones > of.at_most) | (most < of.at_least)).any(1)
        budgets.append(BudgetNumbers(*(x.T.to(dtype)[:, None].contiguous() for x in (of.at_least, of.at_most))))

    if scale is None:
        spans = [theta.abs().masked_fill(theta == -torch.inf, 0.0)]
        spans += [g.abs() + a.abs().maximum(b.abs()) for a, b, g in pairs]
        spans += [_range(v) for v in tables]
        total = sum((s.sum(0) for s in spans), torch.zeros(len(batch), dtype=dtype, device=batch.device))
        scale = total / max(1, sum(len(s) for s in spans))
        scale = torch.where(scale > 0, scale, 1.0)
    push = None
    if lower is not None and upper is not None:
        full = torch.zeros(layout.num_rows, len(batch), dtype=dtype, device=batch.device)
        full[: len(lower)] = PUSH * (lower + upper - 1.0)
        push = full[layout.edge_row]
    return Numbers(
        unary=(theta / scale).contiguous(),
        lower=lower,
        upper=upper,
        push=push,
        pairs=tuple(PairNumbers(*((x / scale).contiguous() for x in p)) for p in pairs),
        tables=tuple((v / scale).contiguous() for v in tables),
        budgets=tuple(budgets),
        constant=constant / scale,
        scale=scale,
        hopeless=hopeless,
    )


def _along(x: Tensor, table: TableLayout, axis: int) -> Tensor:
    """(C, k, B) placed on one axis of a table's cells (C, k_1, ..., k_A, B)."""
    shape = [1] * len(table.shape)
    shape[axis] = table.shape[axis]
    return x.reshape(x.shape[0], *shape, x.shape[-1])


def _range(values: Tensor) -> Tensor:
    """Largest minus smallest finite entry of each table: (C, ..., B) -> (C, B)."""
    flat = values.flatten(1, -2)
    low = flat.masked_fill(flat == -torch.inf, torch.inf).amin(1)
    return (flat.amax(1) - low).nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
