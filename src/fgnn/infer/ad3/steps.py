r"""One iteration of `ad3`: project on every factor, average at every variable.

The relaxation is split into factors and the consistency of tables on one side, variables and the cells of tables on the
other, coupled by :math:`q_{ci} = p_i` (and :math:`\mu_c = s_c` for cells). Alternating directions, in the form that
keeps one state z (the marginal of an edge plus its scaled multiplier):

.. math::
    q &= \Pi_{\text{factors}}(z) \quad\text{(tables: onto consistency; the others: with } \theta_c / \rho \text{)} \\
    p &= \Pi_{\text{simplex}}\Big(\tfrac{1}{d_i} \sum_{c \ni i} (2 q_{ci} - z_{ci}) + \theta_i / (\rho d_i)\Big), \quad
    s = \Pi_{\text{simplex}}(2\mu - z + \theta_c / (\omega \rho)) \\
    z &\leftarrow z + \alpha (p - q)

At the fixed point :math:`\lambda = \rho (z - q)` are optimal multipliers; any multipliers bound the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.infer.ad3.kinds import ActiveSets, KindNumbers, project_kind
from fgnn.infer.ad3.layout import Layout, fold
from fgnn.infer.ad3.numbers import CountNumbers, Fixed, Numbers
from fgnn.infer.ad3.projections import (
    PairTerms,
    cell_weight,
    project_consistent,
    project_counts,
    project_pairs,
    project_simplex,
)
from fgnn.infer.map_tensors import map_tensors

RELAXATION = 1.9  # α
RHO = 0.4  # ρ, for potentials whose mean range is 1
_MOST = 1e30  # in float32, leaves room for sums


@dataclass(frozen=True, eq=False)
class Terms:
    """The numbers as used by the iterations: divided by ρ and by degrees, in the working precision."""

    unary: Tensor  # shape: (V, B), θ_i / (ρ d_i)
    share: Tensor  # shape: (V, 1), 1 / d_i
    fixed: Fixed | None
    pairs: tuple[PairTerms, ...]
    tables: tuple[Tensor, ...]  # shape: (C, K, B) each, θ_c / (ρ ω)
    counts: tuple[CountNumbers, ...]
    kinds: tuple[KindNumbers, ...]  # θ_c / ρ, float64

    @classmethod
    def of(cls, layout: Layout, numbers: Numbers, dtype: torch.dtype) -> Terms:
        too_large = dtype == torch.float32 and bool((numbers.size > _MOST).any())

        def cast(x: Tensor) -> Tensor:
            if too_large:  # any multipliers give a bound, so the iterations may see smaller numbers than the bounds
                x = torch.where(x == -torch.inf, x, x.clamp(-_MOST, _MOST))
            return x.to(dtype).contiguous()

        fixed, counts = map_tensors((numbers.fixed, numbers.counts), cast)
        tables = zip(layout.tables, numbers.tables, strict=True)
        return cls(
            cast(numbers.unary / (RHO * layout.degree)),
            cast(1.0 / layout.degree),
            fixed,
            tuple(PairTerms.of(*(cast(x / RHO) for x in (y.alpha, y.beta, y.gamma))) for y in numbers.pairs),
            tuple(cast(x.flatten(1, -2) / (RHO * cell_weight(t))) for t, x in tables),
            counts,
            tuple(KindNumbers(y.theta / RHO, y.live) for y in numbers.kinds),
        )


@dataclass(eq=False)
class State:
    """The iterates, and the thresholds of the projections for warm starts."""

    z: Tensor  # shape: (E, B)
    q: Tensor  # shape: (E, B)
    p: Tensor  # shape: (V, B)
    cells: Tensor  # shape: (cells, B), z of the cells
    mu: Tensor  # shape: (cells, B)
    s: Tensor  # shape: (cells, B)
    taus: list[Tensor]  # shape: (., 1, B) each: of the counts, then the tables, then the variables of many states
    sets: list[ActiveSets]  # of the other kinds; shared with twins, since any set is a start for any point
    reflected: Tensor  # shape: (E + 1, B), with a last row of zeros for padding

    def twin(self, z: Tensor, cells: Tensor) -> State:
        """A state at another point, with the same thresholds."""
        copies = (self.q.clone(), self.p, cells, self.mu.clone(), self.s.clone())
        return State(z, *copies, list(self.taus), self.sets, self.reflected)


def initial_state(layout: Layout, terms: Terms) -> State:
    """Uniform marginals, zero multipliers."""
    batch, kind, device = terms.unary.shape[1], terms.unary.dtype, terms.unary.device

    def new(rows: int, value: float = 0.0) -> Tensor:
        return torch.full((rows, batch), value, dtype=kind, device=device)

    p = new(layout.num_rows, 0.5)
    for k, _, rows in layout.many:
        p[rows] = 1.0 / k
    cells = new(layout.num_cells)
    for t in layout.tables:
        cells[t.cells] = 1.0 / prod(t.shape)
    z = p[layout.edge_row]
    lengths = [(c.edges.stop - c.edges.start) // c.size for c in layout.counts]
    lengths += [len(t.tables) for t in layout.tables] + [len(members) for _, members, _ in layout.many]
    taus = [new(length)[:, None] for length in lengths]
    sets = [ActiveSets.of(f, batch, device) for f in layout.kinds]
    return State(z, z.clone(), p, cells, cells.clone(), cells.clone(), taus, sets, new(layout.num_edges + 1))


def factor_step(layout: Layout, terms: Terms, state: State) -> None:
    """Update q and μ from z, for all factors."""
    a = state.z if terms.fixed is None else state.z + terms.fixed.push
    for pair, x in zip(layout.pairs, terms.pairs, strict=True):
        project_pairs(a[pair.first], a[pair.second], x, state.q[pair.first], state.q[pair.second])
    for k, (count, y) in enumerate(zip(layout.counts, terms.counts, strict=True)):
        target, out = (fold(x[count.edges], -1, count.size) for x in (a, state.q))
        state.taus[k] = project_counts(target, y.low, y.high, state.taus[k], out)
    for f, w, sets in zip(layout.kinds, terms.kinds, state.sets, strict=True):
        project_kind(f, w, state.z[f.edges], a[f.edges], sets, state.q[f.edges])
    for t in layout.tables:
        cells = fold(state.cells[t.cells], -1, *t.shape)
        edges_of = [fold(state.z[axis], len(t.tables), -1) for axis in t.axes]
        mu, marginals = project_consistent(t, cells, edges_of)
        state.mu[t.cells] = mu.flatten(0, -2)
        for axis, q in zip(t.axes, marginals, strict=True):
            state.q[axis] = q.flatten(0, 1)


def variable_step(layout: Layout, terms: Terms, state: State) -> None:
    """Update p and s from q and μ, and move z by their difference."""
    reflected = state.reflected
    torch.lerp(state.z, state.q, 2.0, out=reflected[:-1])
    if layout.padded is not None:
        total = fold(reflected.index_select(0, layout.padded.flatten()), *layout.padded.shape).sum(1)
    else:
        total = torch.zeros_like(state.p).index_add_(0, layout.edge_row, reflected[:-1])
    p = torch.addcmul(terms.unary, total, terms.share)
    free = len(layout.binary)
    if terms.fixed is None:
        p[:free].clamp_(0.0, 1.0)
    else:
        p[:free] = torch.minimum(torch.maximum(p[:free], terms.fixed.lower), terms.fixed.upper)
    at = len(layout.counts) + len(layout.tables)
    for k, (states, _, rows) in enumerate(layout.many, start=at):
        block, state.taus[k] = project_simplex(fold(p[rows], -1, states), state.taus[k])
        p[rows] = block.flatten(0, 1)
    state.p = p
    state.z.add_(p.index_select(0, layout.edge_row).sub_(state.q), alpha=RELAXATION)
    at = len(layout.counts)
    for k, (t, theta) in enumerate(zip(layout.tables, terms.tables, strict=True), start=at):
        cells = t.cells
        target = fold(torch.lerp(state.cells[cells], state.mu[cells], 2.0), len(t.tables), -1).add_(theta)
        block, state.taus[k] = project_simplex(target, state.taus[k])
        state.s[cells] = block.flatten(0, 1)
        state.cells[cells].add_(state.s[cells] - state.mu[cells], alpha=RELAXATION)


def disagreement(layout: Layout, state: State) -> Tensor:
    """The squared distance between the two sides (B,), 0 at a solution."""
    apart = (state.p.index_select(0, layout.edge_row) - state.q).square_().sum(0)
    for t in layout.tables:
        apart = apart + (state.s[t.cells] - state.mu[t.cells]).square_().sum(0) * cell_weight(t)
    return apart
