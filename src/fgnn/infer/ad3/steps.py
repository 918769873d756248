r"""One iteration of `ad3`: project on every factor, average at every variable.

The relaxation is split in two: factors and tables' consistency on one side, variables and tables' cells on the other,
joined by constraints :math:`q_{ci} = p_i` (and :math:`\mu_c = s_c` for cells). Alternating directions on it, in the
form that carries one state z (an edge's marginal plus its scaled multiplier):

.. math::
    q &= \Pi_{\text{factors}}(z) \quad\text{(tables: onto consistency; the others: with } \theta_c / \rho \text{)} \\
    p &= \Pi_{\text{simplex}}\Big(\tfrac{1}{d_i} \sum_{c \ni i} (2 q_{ci} - z_{ci}) + \theta_i / (\rho d_i)\Big), \quad
    s = \Pi_{\text{simplex}}(2\mu - z + \theta_c / (\omega \rho)) \\
    z &\leftarrow z + \alpha (p - q)

At the fixed point :math:`\lambda = \rho (z - q)` are optimal multipliers; at any point they bound the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout, TableLayout, fold
from fgnn.infer.ad3.numbers import Numbers

RELAXATION = 1.9  # α
RHO = 0.4  # ρ, for potentials whose mean range is 1


def cell_weight(table: TableLayout) -> float:
    """ω, the weight of a cell's constraint beside an edge's: many cells share each edge's."""
    return float((prod(table.shape) / max(table.shape)) ** 0.5)


@dataclass(eq=False)
class State:
    """What changes from iteration to iteration; thresholds are kept because the next ones are close."""

    z: Tensor  # shape: (E, B)
    q: Tensor  # shape: (E, B)
    p: Tensor  # shape: (V, B)
    cells: Tensor  # shape: (cells, B), z of the cells
    mu: Tensor  # shape: (cells, B)
    s: Tensor  # shape: (cells, B)
    budget_tau: list[Tensor]  # shape: (C, 1, B) each
    table_tau: list[Tensor]  # shape: (C, 1, B) each
    many_tau: list[Tensor]  # shape: (n_k, 1, B) each
    rho: Tensor  # shape: (B,)

    def select(self, which: Tensor) -> State:
        def take(x: Tensor) -> Tensor:
            return x.index_select(x.dim() - 1, which)

        return State(
            take(self.z),
            take(self.q),
            take(self.p),
            take(self.cells),
            take(self.mu),
            take(self.s),
            [take(t) for t in self.budget_tau],
            [take(t) for t in self.table_tau],
            [take(t) for t in self.many_tau],
            take(self.rho),
        )


def initial_state(layout: Layout, numbers: Numbers) -> State:
    """Uniform marginals, no multipliers."""
    batch, kind, device = numbers.unary.shape[1], numbers.unary.dtype, numbers.unary.device

    def new(rows: int, value: float = 0.0) -> Tensor:
        return torch.full((rows, batch), value, dtype=kind, device=device)

    p = new(layout.num_rows, 0.5)
    for k, _, (start, end) in layout.many:
        p[start:end] = 1.0 / k
    cells = new(layout.num_cells)
    for t in layout.tables:
        cells[slice(*t.cells)] = 1.0 / prod(t.shape)
    z = p[layout.edge_row]

    def thresholds(count: int) -> Tensor:
        return torch.zeros(count, 1, batch, dtype=kind, device=device)

    return State(
        z=z,
        q=z.clone(),
        p=p,
        cells=cells,
        mu=cells.clone(),
        s=cells.clone(),
        budget_tau=[thresholds((b.edges[1] - b.edges[0]) // b.size) for b in layout.budgets],
        table_tau=[thresholds(len(t.tables)) for t in layout.tables],
        many_tau=[thresholds(len(members)) for _, members, _ in layout.many],
        rho=torch.full((batch,), RHO, dtype=kind, device=device),
    )


def disagreement(layout: Layout, state: State) -> Tensor:
    """How far the two sides are apart, squared (B,): 0 at a solution."""
    apart = (state.p.index_select(0, layout.edge_row) - state.q).square_().sum(0)
    for t in layout.tables:
        cells = slice(*t.cells)
        apart = apart + (state.s[cells] - state.mu[cells]).square_().sum(0) * cell_weight(t)
    return apart


def factor_step(layout: Layout, numbers: Numbers, state: State) -> None:
    """q and μ from z: all factors at once."""
    a = state.z if numbers.push is None else state.z + numbers.push
    for pair, x in zip(layout.pairs, numbers.pairs, strict=True):
        first, second = slice(*pair.first), slice(*pair.second)
        project_pairs(a[first], a[second], x.alpha, x.beta, x.gamma, state.rho, state.q[first], state.q[second])
    for k, (budget, y) in enumerate(zip(layout.budgets, numbers.budgets, strict=True)):
        edges = slice(*budget.edges)
        target = fold(a[edges], -1, budget.size)
        out = fold(state.q[edges], -1, budget.size)
        state.budget_tau[k] = project_budgets(target, y.low, y.high, state.budget_tau[k], out)
    for t in layout.tables:
        cells = fold(state.cells[slice(*t.cells)], -1, *t.shape)
        edges_of = [fold(state.z[slice(*axis)], len(t.tables), -1) for axis in t.axes]
        mu, marginals = project_consistent(t, cells, edges_of)
        state.mu[slice(*t.cells)] = mu.flatten(0, -2)
        for axis, q in zip(t.axes, marginals, strict=True):
            state.q[slice(*axis)] = q.flatten(0, 1)


def variable_step(layout: Layout, numbers: Numbers, state: State) -> None:
    """p and s from q and μ, and z moved on by their difference."""
    reflected = torch.lerp(state.z, state.q, 2.0)
    if layout.padded is not None:
        padding = reflected.new_zeros(1, reflected.shape[1])
        total = torch.cat([reflected, padding])[layout.padded].sum(1)
    else:
        total = torch.zeros_like(state.p).index_add_(0, layout.edge_row, reflected)
    p = (total + numbers.unary / state.rho) / layout.degree.to(total.dtype)
    free = len(layout.binary)
    if numbers.lower is not None and numbers.upper is not None:
        p[:free] = torch.minimum(torch.maximum(p[:free], numbers.lower), numbers.upper)
    else:
        p[:free].clamp_(0.0, 1.0)
    for k, (states, _, rows) in enumerate(layout.many):
        block = fold(p[slice(*rows)], -1, states)
        block, state.many_tau[k] = project_simplex(block, state.many_tau[k])
        p[slice(*rows)] = block.flatten(0, 1)
    state.p = p
    state.z.add_(p.index_select(0, layout.edge_row).sub_(state.q), alpha=RELAXATION)
    for k, (t, theta) in enumerate(zip(layout.tables, numbers.tables, strict=True)):
        cells = slice(*t.cells)
        target = fold(torch.lerp(state.cells[cells], state.mu[cells], 2.0), len(t.tables), -1)
        target = target + theta.flatten(1, -2) / (cell_weight(t) * state.rho)
        block, state.table_tau[k] = project_simplex(target, state.table_tau[k])
        state.s[cells] = block.flatten(0, 1)
        state.cells[cells].add_(state.s[cells] - state.mu[cells], alpha=RELAXATION)


def project_pairs(
    a: Tensor, b: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor, rho: Tensor, u: Tensor, v: Tensor
) -> None:
    r"""Into u and v: the marginals that maximise α u + β v + γ P(1,1) - ρ/2 ((u - a)² + (v - b)²).

    For γ >= 0, P(1,1) = min(u, v), and γ is shared between u and v as far as that keeps them together. A negative γ is
    a positive one with v flipped to 1 - v.
    """
    sign = torch.where(gamma < 0, -1.0, 1.0).to(a.dtype)
    weight = gamma.abs() / rho
    a = a + (alpha + gamma.clamp(max=0.0)) / rho
    b = b + beta / rho
    share = (sign * b - a + weight + (1.0 - sign) / 2).mul_(0.5).clamp_(min=0.0)
    share = torch.minimum(share, weight)
    torch.clamp(a + share, 0.0, 1.0, out=u)
    torch.clamp(b + sign * (weight - share), 0.0, 1.0, out=v)


def project_budgets(a: Tensor, low: Tensor, high: Tensor, tau: Tensor, out: Tensor) -> Tensor:
    """Into ``out`` (C, n, B): the nearest point of {0 <= q <= 1, low <= Σ q <= high} to a; gives the threshold.

    That point is clip(a - τ), with τ > 0 where the sum would exceed high and τ < 0 where it would fall below low: the
    root of a decreasing, piecewise linear function. Two Newton steps from the last τ come close, and closer at the next
    call; where the second turns back past the first, they would run in circles, and the middle is taken.
    """
    start, inside_flag = tau, torch.empty_like(a)
    first = tau
    for step in range(2):
        x = a - tau
        inside = x.clamp(0.0, 1.0)
        total = inside.sum(1, keepdim=True)
        slope = torch.eq(inside, x, out=inside_flag).sum(1, keepdim=True).clamp_(min=1.0)
        tau = (tau + (total - high) / slope).clamp_(min=0.0) + (tau + (total - low) / slope).clamp_(max=0.0)
        first = tau if step == 0 else first
    back = ((first - start) * (tau - first) < 0) & ((tau - first).abs() >= (first - start).abs())
    tau = torch.where(back, (start + first) / 2, tau)
    torch.clamp(a - tau, 0.0, 1.0, out=out)
    return tau


def project_simplex(v: Tensor, tau: Tensor, steps: int = 4) -> tuple[Tensor, Tensor]:
    """The nearest point to v (C, k, B) on the simplex over axis 1, and its threshold; -inf entries become 0.

    Newton on the convex Σ max(v - τ, 0) = 1 from the last τ; what the last step leaves is divided out.
    """
    lowest = v.amax(1, keepdim=True) - 1.0
    tau = torch.minimum(torch.maximum(tau, lowest), lowest + (1.0 - 1.0 / v.shape[1]))  # the root is in between
    for _ in range(steps):
        x = v - tau
        count = (x > 0).to(v.dtype).sum(1, keepdim=True)
        excess = x.clamp_(min=0.0).sum(1, keepdim=True) - 1.0
        tau = torch.maximum(tau + excess / count.clamp(min=1.0), lowest)
    x = (v - tau).clamp_(min=0.0)
    return x / x.sum(1, keepdim=True).clamp(min=1e-12), tau


def project_consistent(table: TableLayout, cells: Tensor, edges: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    r"""The nearest (μ, q) to (cells, edges) with q_a the marginals of μ, cells weighing ω: closed form.

    Marginal sums over one axis are orthogonal to those over another once their means agree, as they do here, so each
    axis corrects the cells by its own error, :math:`c_a = (z_a - M_a z) / (\omega + K / k_a)`. A binary axis has one
    edge, the marginal of state 1, which counts half as much.
    """
    size = prod(table.shape)
    weight = cell_weight(table)
    axes = range(1, len(table.shape) + 1)
    own = [cells.sum([x for x in axes if x != a + 1]) for a in range(len(table.shape))]  # shape: (C, k, B) each
    missing = 1.0 - own[0].sum(1)  # shape: (C, B), rounding only, but left alone it would grow
    mu = cells + (missing / size).reshape(len(missing), *([1] * len(table.shape)), -1)
    marginals = []
    for a, (k, edge) in enumerate(zip(table.shape, edges, strict=True)):
        place = [1] * len(table.shape)
        place[a] = k
        mine = own[a] + (missing / k)[:, None]
        if k == 2:
            error = (edge[:, 0] - mine[:, 1]) / (2 * weight + size / 2)  # shape: (C, B)
            marginals.append((mine[:, 1] + error * (size / 2))[:, None])
            change = torch.stack([-error, error], 1)
        else:
            change = edge - mine
            change = (change - change.mean(1, keepdim=True)) / (weight + size / k)
            marginals.append(mine + change * (size / k))
        mu = mu + change.reshape(len(mine), *place, -1)
    return mu, marginals
