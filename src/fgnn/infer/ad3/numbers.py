"""The numbers of a batch in the layout of `ad3`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.ad3.kinds import KindNumbers, best_values
from fgnn.infer.ad3.layout import KindLayout, Layout, TableLayout, along_axis
from fgnn.pgm import ModelBatch

PUSH = 1e4  # added to the target of a variable with one allowed state, which then projects to that state


@dataclass(frozen=True, eq=False)
class PairNumbers:
    """θ = const + α u + β v + γ [u v], see `projections.project_pairs`."""

    alpha: Tensor  # shape: (C, B)
    beta: Tensor  # shape: (C, B)
    gamma: Tensor  # shape: (C, B)


@dataclass(frozen=True, eq=False)
class CountNumbers:
    """The least and the largest number of ones that each count allows."""

    low: Tensor  # shape: (C, 1, B)
    high: Tensor  # shape: (C, 1, B)


@dataclass(frozen=True, eq=False)
class Fixed:
    """Bounds of binary variables, some of which have one allowed state."""

    lower: Tensor  # shape: (Vb, B), of p(1)
    upper: Tensor  # shape: (Vb, B)
    push: Tensor  # shape: (E, B), added to the targets of projections


@dataclass(frozen=True, eq=False)
class Numbers:
    """Potentials of some standard models, divided by ``scale``; forbidden states are masked out everywhere."""

    unary: Tensor  # shape: (V, B), binary: θ(1) - θ(0) with 0 where a state is forbidden; others: θ with -inf
    fixed: Fixed | None  # None: no state of a binary variable is forbidden
    pairs: tuple[PairNumbers, ...]
    tables: tuple[Tensor, ...]  # shape: (C, k_1, ..., k_A, B) each
    counts: tuple[CountNumbers, ...]
    kinds: tuple[KindNumbers, ...]
    constant: Tensor  # shape: (B,)
    scale: Tensor  # shape: (B,), so that the mean range of the factors is 1
    size: Tensor  # shape: (B,), a bound on the sum of the absolute values of all factors
    infeasible: Tensor  # shape: (B,), bool: some factor or variable allows nothing


def build_numbers(batch: ModelBatch, layout: Layout, scale: Tensor | None = None) -> Numbers:
    """The potentials of a batch in a layout, float64, divided by ``scale`` (B,): by default the factors' mean range."""
    unary, constant = _with_dropped(batch, layout)
    allowed = unary > -torch.inf
    infeasible = ~allowed.any(2).all(1) | (constant == -torch.inf)
    theta, base, fixed = _unary_rows(layout, unary, allowed)
    constant = constant + base
    pairs = []
    for x in layout.pairs:
        v = batch.tables[x.group].values[:, x.tables].double().flatten(2).permute(2, 1, 0)  # shape: (4, C, B)
        constant = constant + v[0].sum(0)
        pairs.append((v[2] - v[0], v[1] - v[0], v[3] - v[2] - v[1] + v[0]))
    tables = [_table_values(batch, y, allowed) for y in layout.tables]
    for v in tables:
        infeasible = infeasible | (v.flatten(1, -2).amax(1) == -torch.inf).any(0)
    counts = []
    for f in batch.counted:
        bounds = f.bounds() if f.form == "ones" else None
        if bounds is None:
            continue
        low, high = (x.expand(len(batch), -1) for x in bounds)
        fewest = (~allowed[:, f.scopes, 0]).sum(2)  # shape: (B, C)
        most = allowed[:, f.scopes, 1].sum(2)
        infeasible = infeasible | ((fewest > high) | (most < low)).any(1)
        counts.append(CountNumbers(*(x.T.double()[:, None].contiguous() for x in (low, high))))
    kinds = [_kind_numbers(batch, z, allowed) for z in layout.kinds]
    for z, y in zip(layout.kinds, kinds, strict=True):
        infeasible = infeasible | (best_values(z, y, y.live) == -torch.inf).any(0)
    soft = [y.theta for z, y in zip(layout.kinds, kinds, strict=True) if z.soft]
    if scale is None:
        ranges = [_finite(theta).abs()]
        ranges += [g.abs() + a.abs().maximum(b.abs()) for a, b, g in pairs]
        scale = _mean([*ranges, *(_range(v) for v in [*tables, *soft])])
        scale = torch.where(scale > 0, scale, 1.0)
    terms = [
        constant[None],
        theta,
        *(x for p in pairs for x in p),
        *(_finite(v).flatten(1, -2).amin(1) for v in [*tables, *(y.theta for y in kinds)]),
    ]
    size = sum((_finite(x).abs().sum(0) for x in terms), torch.zeros_like(scale))
    return Numbers(
        unary=(theta / scale).contiguous(),
        fixed=fixed,
        pairs=tuple(PairNumbers(*((x / scale).contiguous() for x in p)) for p in pairs),
        tables=tuple((v / scale).contiguous() for v in tables),
        counts=tuple(counts),
        kinds=tuple(KindNumbers((y.theta / scale).contiguous(), y.live) for y in kinds),
        constant=constant / scale,
        scale=scale,
        size=size / scale,
        infeasible=infeasible,
    )


def _with_dropped(batch: ModelBatch, layout: Layout) -> tuple[Tensor, Tensor]:
    """Unaries (B, N, K) and constants (B,), with the tables that have at most one axis of several states."""
    unary, constant = batch.unary.double().clone(), batch.constant.double().clone()
    for group, axes in layout.dropped:
        t = batch.tables[group]
        values = t.values.double().flatten(2)  # shape: (B, C, k)
        if axes:
            unary[:, :, : values.shape[2]].index_add_(1, t.scopes[:, axes[0]], values)
        else:
            constant += values.sum((1, 2))
    constant += unary[:, layout.row < 0, 0].sum(1)
    return unary, constant


def _unary_rows(layout: Layout, unary: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Fixed | None]:
    """Unaries by row (V, B), the sum of the states 0 of binary variables (B,), and `Numbers.fixed`."""
    two = unary[:, layout.binary, :2]
    zero, one = allowed[:, layout.binary, 0], allowed[:, layout.binary, 1]
    base = torch.where(zero, two[..., 0], 0.0)
    # If only state 1 is allowed, p is fixed to 1 and the base is 0, so the difference is θ(1) itself.
    rows = [torch.where(one, two[..., 1], 0.0) - base]
    rows += [unary[:, members, :k].flatten(1) for k, members, _ in layout.many]
    theta, fixed = torch.cat(rows, 1).T, None
    if bool((~zero).any() | (~one).any()):
        lower = (~zero).double().T.contiguous()
        upper = torch.maximum(one.double().T.contiguous(), lower)  # differs only if infeasible
        push = theta.new_zeros(theta.shape)
        push[: len(lower)] = PUSH * (lower + upper - 1.0)
        fixed = Fixed(lower, upper, push[layout.edge_row])
    return theta, base.sum(1), fixed


def _table_values(batch: ModelBatch, table: TableLayout, allowed: Tensor) -> Tensor:
    """Values (C, k_1, ..., k_A, B); a cell with a forbidden state is forbidden."""
    t = batch.tables[table.group]
    values = t.values[:, table.tables].double().flatten(2).permute(1, 2, 0)
    values = values.reshape(len(table.tables), *table.shape, len(batch))
    for place, axis in enumerate(a for a, k in enumerate(t.shape) if k > 1):
        ok = allowed[:, t.scopes[table.tables, axis], : table.shape[place]].permute(1, 2, 0)  # shape: (C, k, B)
        values = values.masked_fill(~along_axis(ok, table, place), -torch.inf)
    return values


def _kind_numbers(batch: ModelBatch, f: KindLayout, allowed: Tensor) -> KindNumbers:
    factors = batch.factors[f.group]
    theta = factors.potentials(torch.float64).expand(len(batch), -1, -1).permute(1, 2, 0).contiguous()
    ok = allowed[:, factors.scopes, : max(f.shape)].permute(1, 2, 3, 0)  # shape: (C, n, K, B)
    return KindNumbers(
        theta, torch.zeros(ok.shape, dtype=theta.dtype, device=theta.device).masked_fill(~ok, -torch.inf)
    )


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values == -torch.inf, 0.0)


def _range(values: Tensor) -> Tensor:
    """Largest minus smallest finite entry of each table: (C, ..., B) to (C, B)."""
    flat = values.flatten(1, -2)
    low = flat.masked_fill(flat == -torch.inf, torch.inf).amin(1)
    return (flat.amax(1) - low).nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)


def _mean(parts: list[Tensor]) -> Tensor:
    """The mean over the rows of all parts (n, B), shape (B,).

    Each part is summed on its own: the order of one long sum, and so its rounding, would depend on the batch.
    """
    total = sum((part.sum(0) for part in parts), torch.zeros_like(parts[0][:0].sum(0)))
    return total / max(1, sum(len(part) for part in parts))
