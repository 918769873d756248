"""The residual FGNN layer: sums over edges, an RMS norm before and a residual update after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGraph, Incidence, Side, exporting
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.torch.slots import Slots, relu_sum, variables_to_slots
from fgnn.nn.backends.torch.traced import aggregate_traced, edge_products, reduce_segments
from fgnn.nn.checked import Checked
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.edge_matrix import CosineMatrix
from fgnn.nn.inputs import Widths, check_groups
from fgnn.nn.norm import RMSNorm
from fgnn.nn.plain_modules import is_observed

# The arity that first weights are scaled for where factors may have any.
_TYPICAL_ARITY = 8


class ResidualUpdate(nn.Module):
    r"""The update of a node, :math:`x + V \sigma(U \hat x + m + b)`, with σ = SiLU, of incoming messages m.

    Args:
        width: Length of x.
        hidden: Length of m and of the hidden layer.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.bias)
        with torch.no_grad():
            self.outer.weight.mul_(0.5)  # many layers add up

    def forward(self, x: Tensor, normed: Tensor, incoming: Tensor | float) -> Tensor:
        """The new x, from x, x̂ and m.  # shape: (..., width)"""
        new: Tensor = x + self.outer(nn.functional.silu(self.inner(normed) + incoming))
        return new


class _ToFactors(nn.Module):
    """The first half, for one group."""

    def __init__(self, width: int, bases: int, fan: int) -> None:
        super().__init__()
        self.matrix = CosineMatrix(2 * width, width, bases=bases, fan=fan)
        self.norm = RMSNorm(width)
        self.update = ResidualUpdate(width, 2 * width)

    def forward(self, incidence: Incidence, f: Tensor, g: Tensor) -> Tensor:
        """New g from normalised f.  # shape: (B, C, d)"""
        new: Tensor = self.update(g, self.norm(g), self._incoming(incidence, f))
        return new

    def _incoming(self, incidence: Incidence, f: Tensor) -> Tensor:
        """The sum of messages.  # shape: (B, N, d) -> (B, C, 2d)"""
        slots = _slots(incidence)
        if slots is None:
            phi, weight, call = _by_edge(self.matrix, incidence, "factor")
            return aggregate_traced(f.index_select(1, incidence.variable), None, phi, weight, call)
        runs = slots.slots_by_run(variables_to_slots(f, slots))
        parts = [
            nn.functional.linear(x, at.permute(1, 0, 2).flatten(1))  # at: (A, 2d, d)
            for at, x in zip(_matrices(self.matrix, incidence, slots), runs, strict=True)
        ]
        return slots.from_runs(parts)


class _ToVariables(nn.Module):
    """The second half up to the update, for one group."""

    def __init__(self, width: int, bases: int) -> None:
        super().__init__()
        self.matrix = CosineMatrix(width, width, bases=bases)
        self.norm = RMSNorm(width)
        self.variable = nn.Linear(width, width)
        self.out = nn.Linear(width, 2 * width, bias=False)

    def forward(self, incidence: Incidence, f: Tensor, g: Tensor) -> Tensor:
        """The sum of messages, from normalised f.  # shape: (B, N, 2d)"""
        total: Tensor = self.out(self._incoming(incidence, self.variable(f), self.norm(g)))
        return total

    def _incoming(self, incidence: Incidence, own: Tensor, g: Tensor) -> Tensor:
        """The sum over edges of what the factor sends and the variable's own part, after ReLU.  # shape: (B, N, d)"""
        slots = _slots(incidence)
        if slots is None:
            phi, weight, call = _by_edge(self.matrix, incidence, "variable")
            sent = edge_products(g.index_select(1, incidence.group().factor_index()), phi, weight, call)
            messages = (sent + own.index_select(1, incidence.variable)).relu()
            return reduce_segments(messages, incidence.variable, incidence.num_variables, call.aggregation)
        parts = []
        for at, x in zip(_matrices(self.matrix, incidence, slots), slots.to_runs(g), strict=True):
            sent = nn.functional.linear(x, at.flatten(0, 1))  # at: (A, d, d)
            parts.append(sent.view(x.shape[0], x.shape[1] * at.shape[0], at.shape[1]))
        return relu_sum(parts[0] if len(parts) == 1 else torch.cat(parts, 1), own, slots)


def _slots(incidence: Incidence) -> Slots | None:
    """The slots of a group's edges; None where sums over edges serve, because code that is traced cannot make them.

    Exported code reads the scopes as inputs. Compiled code uses slots that are there before it is called.
    """
    if exporting():
        return None
    return Slots.made(incidence) if torch.compiler.is_compiling() else Slots.of(incidence)


def _by_edge(q: nn.Module, incidence: Incidence, towards: Side) -> tuple[Tensor | None, Tensor, EdgeCall]:
    """φ (E, T) or None, W (T, m, n), and a sum over edges, for code without slots."""
    coefficients, weight = q(None, incidence)
    types, phi = (coefficients, None) if isinstance(coefficients, EdgeTypes) else (None, coefficients)
    return phi, weight, EdgeCall(incidence, towards, False, Aggregation("sum"), types, None)


def _matrices(q: nn.Module, incidence: Incidence, slots: Slots) -> list[Tensor]:
    """Q at the positions of a scope, for each run.  # shapes: (A, m, n)"""
    if isinstance(q, CosineMatrix) and type(q).forward is CosineMatrix.forward and not is_observed(q):
        return [q.at_positions(incidence, arity) for _, arity in slots.runs]
    coefficients, weight = q(None, incidence)
    group, start, found = incidence.group(), 0, []
    for count, arity in slots.runs:  # the factors of a run have the same matrices
        if not count:
            return [weight.new_zeros(arity, *weight.shape[1:])]
        factor = torch.tensor(start, device=weight.device) if slots.order is None else slots.order[start]
        edges = group.factor_ptr()[factor] + torch.arange(arity, device=weight.device)
        if isinstance(coefficients, EdgeTypes):
            found.append(weight.index_select(0, coefficients.index[edges]))
        else:
            found.append(torch.tensordot(coefficients[edges], weight, 1))
        start += count
    return found


class ResidualFGNNLayer(Checked):
    r"""An FGNN layer (Alg. 1, sequential) with sums and residual updates, where :math:`\hat x` is x after an RMS norm:

    .. math::
        g_c &\leftarrow g_c + V_g\, \sigma\Big(U_g \hat g_c + b_g +
            \sum_{i: (c,i)} \mathcal{Q}(t_{ci} \mid \Phi_{VF})\, \hat f_i\Big) \\
        f_i &\leftarrow f_i + V_f\, \sigma\Big(U_f \hat f_i + b_f + \sum_k W_k \sum_{c: (c,i)}
            \mathrm{ReLU}\big(\mathcal{Q}(t_{ci} \mid \Phi_{FV})\, \hat g_c + P_k \hat f_i + p_k\big)\Big)

    with σ = SiLU and k the group of c. Q and the parameters of g also belong to the group. Q is a
    :class:`CosineMatrix`, so one group may hold factors of any arity. Messages to factors are linear: their sum over a
    scope of A variables is one matrix product of inner length A·d. A node without edges is updated from its own
    features.

    Args:
        width: d, the length of f_i and of every g_c.
        arity: The arity of each group; None for a group of any arity.
        bases: Cosines in Q; a group of smaller arity has as many as its arity.

    Shapes:
        f (N, d) or (B, N, d); gs by group (C, d) or (B, C, d), for every group of the graph. Returns the same. Edge
        features are not read.
    """

    def __init__(self, width: int, arity: Mapping[str, int | None], bases: int = 8) -> None:
        super().__init__()
        check_groups("arity", arity)
        self.width, self._arity = width, dict(arity)
        terms = {name: bases if a is None else min(bases, a) for name, a in arity.items()}
        self.to_factors_norm, self.to_variables_norm = RMSNorm(width), RMSNorm(width)
        self.to_factors = nn.ModuleDict(
            {name: _ToFactors(width, terms[name], a or _TYPICAL_ARITY) for name, a in arity.items()}
        )
        self.to_variables = nn.ModuleDict({name: _ToVariables(width, terms[name]) for name in arity})
        self.update = ResidualUpdate(width, 2 * width)

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """New variable features, and new factor features by group."""
        self._check(graph, f, gs, {})
        batched = f.dim() == 3 or any(gs[name].dim() == 3 for name in graph.groups)
        f = f if f.dim() == 3 else f.unsqueeze(0)
        incidences = {name: graph.incidence(name) for name in graph.groups}
        normed, new_gs = self.to_factors_norm(f), {}
        for name, incidence in incidences.items():
            g = gs[name] if gs[name].dim() == 3 else gs[name].unsqueeze(0)
            new_gs[name] = self.to_factors[name](incidence, normed, g)
        normed = self.to_variables_norm(f)
        incoming: Tensor | float = 0.0
        for name, incidence in incidences.items():
            incoming = incoming + self.to_variables[name](incidence, normed, new_gs[name])
        new_f = self.update(f, normed, incoming)
        if batched:
            return new_f, new_gs
        return new_f.squeeze(0), {name: g.squeeze(0) for name, g in new_gs.items()}

    def prepare(self, graph: FactorGraph) -> None:
        """Make all tensors that are derived from the graph now (before compiling or capturing a layer)."""
        if torch.compiler.is_compiling():
            return  # the scopes may not be known
        self._check_arities(graph)
        for name in graph.groups:
            incidence, matrix = graph.incidence(name), getattr(self.to_factors[name], "matrix", None)
            for _, arity in Slots.of(incidence).runs:
                if isinstance(matrix, CosineMatrix):
                    matrix.cosines(incidence, arity)

    def _reads(self) -> tuple[Widths, torch.dtype]:
        lengths = dict.fromkeys(self._arity, self.width)
        return Widths(self.width, lengths, dict.fromkeys(self._arity)), self.update.inner.weight.dtype

    def _check(self, graph: FactorGraph, f: Any, gs: Any, edges: Any) -> None:
        super()._check(graph, f, gs, edges)
        self._check_arities(graph)

    def _check_arities(self, graph: FactorGraph) -> None:
        for name, group in graph.groups.items():
            if name not in self._arity:
                raise ValueError(f"Expected groups among {list(self._arity)} in the graph (got {name!r})")
            arity = self._arity[name]
            if arity is not None and group.arity != arity and group.num_edges:
                got = "scopes of several lengths" if group.arity is None else group.arity
                raise ValueError(f"Expected group {name!r} of arity {arity}, as the layer was made for (got {got})")

    def extra_repr(self) -> str:
        return f"width={self.width}"
