"""From nodes to samples and to edges: pooling by graph, and heads for scores of graphs and edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.torch.traced import reduce_segments
from fgnn.nn.inputs import check_dtype, check_features, check_groups, check_kinds, check_samples
from fgnn.nn.message import Message, call_on_edges, in_parts
from fgnn.nn.shape_text import shape_text

Pooling = Literal["sum", "mean", "max", "attention"]


class GraphPool(nn.Module):
    r"""Pool the nodes i of each sample into one vector.

    ``sum``, ``mean`` and ``max`` act entry by entry; ``attention`` is
    :math:`\sum_i \alpha_i f_i` with :math:`\alpha = \operatorname{softmax}_i (w^\top f_i)` over the nodes of a sample.
    A sample without nodes gets zeros.

    Args:
        how: "sum", "mean", "max" or "attention".
        width: Length of f_i; only needed for attention.

    Shapes:
        (ΣN, d) over concatenated graphs to (G, d); (B, N, d) over a shared structure to (B, d).
    """

    def __init__(self, how: Pooling = "mean", width: int | None = None) -> None:
        super().__init__()
        if how not in get_args(Pooling):
            raise ValueError(f"Expected pooling among {list(get_args(Pooling))} (got {how!r})")
        if (how == "attention") != (width is not None):
            raise ValueError(f"Expected a width for attention and none otherwise (got {width} for {how!r})")
        self.how, self.width = how, width
        self.score = None if width is None else nn.Linear(width, 1)

    def forward(self, graph: FactorGraph, x: Tensor, group: str | None = None) -> Tensor:
        """Pool features x of the variables or, with ``group``, of the factors of that group."""
        self._check(graph, x, group)
        count = x.shape[-2]
        if graph.variable_ptr is None:
            return self._reduce(x, torch.zeros(count, dtype=torch.long, device=x.device), 1).squeeze(-2)
        index = graph.batch_index() if group is None else graph.factor_batch_index(group)
        return self._reduce(x, index, graph.num_graphs)

    def _check(self, graph: FactorGraph, x: Tensor, group: str | None) -> None:
        """Refuse what is not the features of the nodes to pool."""
        check_kinds(graph, x, {}, {}, "the arguments are (graph, x, group)")
        if group is not None and group not in graph.groups:
            raise ValueError(f"Expected a group among {list(graph.groups)} (got {group!r})")
        count = graph.num_variables if group is None else graph.groups[group].num_factors
        fits = x is not None and x.dim() >= 2 and x.shape[-2] == count
        if not fits or (self.width is not None and x.shape[-1] != self.width):
            what = "variables" if group is None else f"factors of group {group!r}"
            expected = f"features (..., {int(count)}, {'d' if self.width is None else int(self.width)})"
            raise ValueError(f"Expected {expected} of the {what} to pool (got {shape_text(x)})")
        if x is not None and self.score is not None:
            check_dtype("x", x, self.score.weight.dtype)

    def _reduce(self, x: Tensor, index: Tensor, graphs: int) -> Tensor:
        """(..., nodes, d) to (..., graphs, d), by sums in float32 or better: in bfloat16, 256 + 1 is 256."""
        return self._sums(x, x.to(torch.promote_types(x.dtype, torch.float32)), index, graphs).to(x.dtype)

    def _sums(self, given: Tensor, x: Tensor, index: Tensor, graphs: int) -> Tensor:
        if self.score is not None:
            weights = self.score(given).to(x.dtype)
            largest = reduce_segments(weights.detach(), index, graphs, Aggregation("max"))
            # Not index_select: torch.compile with threads cannot generate its gradient for a single sum.
            where = index.unsqueeze(-1).expand(weights.shape)
            weights = (weights - largest.gather(-2, where)).exp()
            total = reduce_segments(weights, index, graphs, Aggregation("sum"))
            return reduce_segments(x * weights / total.gather(-2, where), index, graphs, Aggregation("sum"))
        pooled = reduce_segments(x, index, graphs, Aggregation("max" if self.how == "max" else "sum"))
        if self.how == "sum":
            return pooled
        counts = torch.zeros(graphs, dtype=x.dtype, device=x.device).scatter_add(0, index, x.new_ones(index.shape))
        if self.how == "mean":
            return pooled / counts.clamp_min(1).unsqueeze(-1)
        return pooled.masked_fill((counts == 0).unsqueeze(-1), 0.0)

    def extra_repr(self) -> str:
        return self.how


class GraphHead(nn.Module):
    """Scores of each sample: pool the variables, then an MLP with ReLU between its layers.

    Args:
        width: Length of f_i.
        out: Scores of a sample.
        pool: As in :class:`GraphPool`.
        hidden: Widths of the MLP's hidden layers.

    Example:
        >>> from fgnn import FactorGraph, FactorGroup
        >>> both = FactorGraph.concat([FactorGraph(n, {"pair": FactorGroup([[0, 1]])}) for n in (2, 3)])
        >>> GraphHead(8, 1)(both, torch.randn(5, 8)).shape
        torch.Size([2, 1])
    """

    def __init__(self, width: int, out: int, *, pool: Pooling = "mean", hidden: Sequence[int] = ()) -> None:
        super().__init__()
        self.width = width
        self.pool = GraphPool(pool, width if pool == "attention" else None)
        self.mlp = nn.Sequential()
        for k, (i, o) in enumerate(pairwise([width, *hidden, out])):
            if k:
                self.mlp.append(nn.ReLU())
            self.mlp.append(nn.Linear(i, o))

    def forward(self, graph: FactorGraph, f: Tensor) -> Tensor:
        """Scores (G, out) or (B, out) from features of the variables."""
        check_kinds(graph, f, {}, {}, "the arguments are (graph, f)")
        n, d = graph.num_variables, self.width
        if f is None or f.dim() < 2 or f.shape[-2] != n or f.shape[-1] != d:
            raise ValueError(f"Expected f of shape (..., {int(n)}, {int(d)}) (got {shape_text(f)})")
        check_dtype("f", f, next((p.dtype for p in self.mlp.parameters()), None))
        scores: Tensor = self.mlp(self.pool(graph, f))
        return scores


class EdgeHead(nn.Module):
    r"""Scores of each edge (c, i), :math:`\mathcal{M}([g_c, f_i])`, with an MLP for each group.

    Args:
        variable_in: Length of f_i.
        factor_in: Length of g_c by group.
        out: Scores of an edge.
        hidden: Widths of the MLP's hidden layers.
    """

    def __init__(self, variable_in: int, factor_in: Mapping[str, int], out: int, *, hidden: Sequence[int] = ()) -> None:
        super().__init__()
        check_groups("factor_in", factor_in)
        self.messages = nn.ModuleDict(
            {
                name: Message(length, variable_in, out, hidden=hidden, final_activation="identity")
                for name, length in factor_in.items()
            }
        )

    def forward(self, graph: FactorGraph, f: Tensor, gs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scores by group in edge order, of the groups that the head has.  # shape: (B?, E, out)"""
        check_kinds(graph, f, gs, {}, "the arguments are (graph, f, gs)")
        missing = [name for name in self.messages if name not in graph.groups]
        if missing:
            raise ValueError(f"Expected a graph with the groups {list(self.messages)} (got {list(graph.groups)})")
        scores = {}
        for name, message in self.messages.items():
            group, g = graph.groups[name], gs.get(name)
            if isinstance(message, Message):
                dtype, what = message.factor_weight.dtype, f"factors of group {name!r}"
                check_features("f", "variables", f, graph.num_variables, message.variable_in, dtype)
                check_features(f"gs[{name!r}]", what, g, group.num_factors, message.factor_in, dtype)
                named = (("f", f, message.variable_in), (f"gs[{name!r}]", g, message.factor_in))
                check_samples({key: x.shape[0] for key, x, width in named if width and x is not None and x.dim() == 3})
            ends = group.factor_index(), group.scopes.reshape(-1)
            if isinstance(message, Message) and in_parts(message):
                scores[name] = message.per_edge(*message.parts(g, f, group.num_factors, graph.num_variables), *ends)
            else:
                scores[name] = call_on_edges(message, g, f, *ends)
        return scores
