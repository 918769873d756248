"""The blocks of the paper's networks besides the FGNN layer: FC, MLP, Res, DR and GlobalPooling.

Each maps (graph, f, gs, edges) to (f, gs). Where the factors are not read any more, ``gs`` is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph
from fgnn.nn.aggregate import Aggregation, reduce_edges
from fgnn.nn.backends.linear import linear
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.norm import NodeBatchNorm, Norm, make_norm

Features = tuple[Tensor, dict[str, Tensor]]


class _Dense(nn.Sequential):
    """A linear layer, and what may follow it."""

    def __init__(self, width_in: int, out: int, norm: Norm, activation: str | None) -> None:
        parts: list[nn.Module] = [nn.Linear(width_in, out)]
        after = make_norm(norm, out)
        if after is not None:
            parts.append(after)
        if activation == "relu":
            parts.append(nn.ReLU())
        super().__init__(*parts)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """With a residual, that is added.  # shape: (..., width_in) to (..., out)"""
        first, *after = self
        assert isinstance(first, nn.Linear)
        if after and isinstance(after[0], NodeBatchNorm) and after[0].fused(x):
            # the norm takes the bias, the ReLU and the residual along: fewer passes over memory
            made: Tensor = after[0](linear(x, first.weight), first.bias, relu=len(after) > 1, residual=residual)
            return made
        joined = len(after) == 1 and isinstance(after[0], nn.ReLU)
        x = linear(x, first.weight, first.bias, relu=joined)
        for part in () if joined else after:
            x = part(x)
        return x if residual is None else residual + x


class FC(nn.Module):
    r"""A fully connected layer on every node, :math:`x \mapsto \mathrm{ReLU}(W_k x + b_k)`, k the type of the node.

    Variables and each group of factors have weights of their own.

    Args:
        variable_in: Length of f_i.
        factor_in: Length of g_c by group; a group left out, or without features (0), is not carried on.
        out: The new length of all of them.
        norm: "batch", "layer" or None.
        activation: "relu" or None.
    """

    def __init__(
        self,
        variable_in: int,
        factor_in: Mapping[str, int],
        out: int,
        *,
        norm: Norm = None,
        activation: str | None = "relu",
    ) -> None:
        super().__init__()
        if activation not in (None, "relu"):
            raise ValueError(f"Expected activation 'relu' or None (got {activation!r})")
        self.variable = _Dense(variable_in, out, norm, activation)
        self.factor = nn.ModuleDict(
            {name: _Dense(width, out, norm, activation) for name, width in factor_in.items() if width}
        )

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
        residual: Features | None = None,
    ) -> Features:
        """New features of all nodes; with a residual, plus those."""
        at_f, at_g = residual if residual is not None else (None, {})
        made = {name: self.factor[name](g, at_g.get(name)) for name, g in gs.items() if name in self.factor}
        return self.variable(f, at_f), made


class MLP(nn.Module):
    """Several :class:`FC` one after the other; of one width it is an FC."""

    def __init__(
        self,
        variable_in: int,
        factor_in: Mapping[str, int],
        widths: Sequence[int],
        *,
        norm: Norm = None,
        activation: str | None = "relu",
    ) -> None:
        super().__init__()
        if not widths:
            raise ValueError("Expected at least one width (got none)")
        self.layers = nn.ModuleList()
        for out in widths:
            self.layers.append(FC(variable_in, factor_in, out, norm=norm, activation=activation))
            variable_in, factor_in = out, dict.fromkeys(factor_in, out)

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Features:
        """New features of all nodes."""
        made = dict(gs)
        for layer in self.layers:
            f, made = layer(graph, f, made, edges)
        return f, made


class Res(nn.Module):
    """A residual link, x + body(x), on variables and on every group the body returns."""

    def __init__(self, body: Sequence[nn.Module]) -> None:
        super().__init__()
        self.body = nn.ModuleList(body)

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Features:
        """New features, as long as the old."""
        new, made = f, dict(gs)
        *inner, last = self.body
        for layer in inner:
            new, made = layer(graph, new, made, edges)
        if isinstance(last, FC):
            found: Features = last(graph, new, made, edges, (f, dict(gs)))
            return found
        new, made = last(graph, new, made, edges)
        return f + new, {name: gs[name] + g for name, g in made.items()}


class DR(nn.Module):
    """Dropout with rate p on variables and factors."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"Expected a dropout rate in [0, 1) (got {p})")
        self.dropout = nn.Dropout(p)

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Features:
        """The same features with some entries at zero while training."""
        return self.dropout(f), {name: self.dropout(g) for name, g in gs.items()}


class GlobalPooling(nn.Module):
    r"""PointNet's: :math:`f_i \mapsto [f_i, \max_j f_j]`, over the variables j of the same graph.

    The length of f_i doubles. Factors stay as they are: what is global reaches them through the next layer's M.
    """

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Features:
        """Variables twice as long, factors unchanged."""
        size = graph.num_variables if graph.variable_ptr is None else graph.graph_size
        if f.shape[-2] == 0:
            return torch.cat([f, f], dim=-1), dict(gs)
        if size:
            rows = f.view(*f.shape[:-2], -1, size, f.shape[-1])
            # max with its index, not amax: on a tie the gradient goes to the first, as everywhere
            pooled = rows.max(-2, keepdim=True).values.expand_as(rows).flatten(-3, -2)
        else:
            members = graph.members()
            rows = f.movedim(-2, 0)
            best, _ = reduce_edges(rows, members, "factor", Aggregation("max"), arg=True)
            pooled = best.index_select(0, members.factor).movedim(0, -2)
        return torch.cat([f, pooled], dim=-1), dict(gs)
