"""The two halves of a layer: messages from variables to factors, and from factors to variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fgnn.graph import FactorGraph, Incidence
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.edge_matrix import EdgeMatrix
from fgnn.nn.half_layer import EdgeMessages, Output, Sent, to_factors, to_variables
from fgnn.nn.message import Message
from fgnn.nn.norm import Norm
from fgnn.nn.plain_modules import is_plain
from fgnn.nn.replays import replays


def all_to_factors(
    halves: Mapping[str, VariableToFactor],
    graph: FactorGraph,
    f: Tensor | None,
    gs: Mapping[str, Tensor],
    edges: Mapping[str, EdgeFeatures],
) -> dict[str, Tensor]:
    """The first half of a layer for all groups of a graph, in one operation if they are of the same kind."""
    some = [halves[name] for name in graph.groups]
    kinds = {half.kind if is_plain(half, VariableToFactor) else None for half in some}
    if len(kinds) != 1 or None in kinds:
        return {name: halves[name](graph.incidence(name), f, gs.get(name), edges.get(name)) for name in graph.groups}
    sent = [
        Sent(half.edge_messages, graph.incidence(name), gs.get(name), edges.get(name))
        for name, half in zip(graph.groups, some, strict=True)
    ]
    new_gs = to_factors(sent, f, some[0].aggregation, [half.output for half in some])
    return dict(zip(graph.groups, new_gs, strict=True))


class VariableToFactor(nn.Module):
    r"""Alg. 1, first half, for one group:

    .. math:: \tilde g_c = \operatorname{agg}_{i: (c,i) \in \mathcal{E}}
              \mathcal{Q}(t_{ci} \mid \Phi_{VF})\, \mathcal{M}([g_c, f_i] \mid \Theta_{VF})

    A factor with an empty scope gets zeros.

    Args:
        message: M.
        matrix: Q; its rows are the output width.
        aggregate: "max", "sum", "mean", "softmax" or "softmax(γ)".
        bias, norm, activation: Applied after the aggregation; none by default.
    """

    def __init__(
        self,
        message: Message,
        matrix: EdgeMatrix,
        *,
        aggregate: str | Aggregation = "max",
        bias: bool = False,
        norm: Norm = None,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        self.aggregation = Aggregation.parse(aggregate)
        self.edge_messages = EdgeMessages(message, matrix)
        self.output = Output(matrix.rows, bias=bias, norm=norm, activation=activation)

    @replays
    def forward(
        self, incidence: Incidence, f: Tensor | None, g: Tensor | None, t: EdgeFeatures | None = None
    ) -> Tensor:
        """New factor features of the group whose edges are ``incidence``.  # shape: (B?, C, m)"""
        return to_factors([Sent(self.edge_messages, incidence, g, t)], f, self.aggregation, [self.output])[0]

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """What halves must have in common to run as one; None if the output must be called by itself."""
        end, how = self.output, self.aggregation
        if not is_plain(end, Output):
            return None
        gamma = how.gamma if how.kind == "softmax" else None
        return how.kind, gamma, end.bias is None, end.norm is None, end.activation

    def extra_repr(self) -> str:
        return f"aggregate={self.aggregation}"


class FactorToVariable(nn.Module):
    r"""Alg. 1, second half, over the edges of all groups:

    .. math:: \tilde f_i = \operatorname{agg}_{c: (c,i) \in \mathcal{E}}
              \mathcal{Q}(t_{ci} \mid \Phi_{FV})\, \mathcal{M}([g_c, f_i] \mid \Theta_{FV})

    Each group has its own M and Q; the aggregation is over the union of their edges. A variable in no scope gets zeros.

    Args:
        messages: M and Q by group; all Q have the same number of rows.
        aggregate, bias, norm, activation: As in :class:`VariableToFactor`.
    """

    def __init__(
        self,
        messages: Mapping[str, tuple[Message, EdgeMatrix]],
        *,
        aggregate: str | Aggregation = "max",
        bias: bool = False,
        norm: Norm = None,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        if not messages:
            raise ValueError("Expected at least one group of factors (got none)")
        widths = {matrix.rows for _, matrix in messages.values()}
        if len(widths) != 1:
            raise ValueError(f"Expected Q of one output width in all groups (got {sorted(widths)})")
        self.aggregation = Aggregation.parse(aggregate)
        self.edge_messages = nn.ModuleDict({name: EdgeMessages(*parts) for name, parts in messages.items()})
        self.output = Output(widths.pop(), bias=bias, norm=norm, activation=activation)

    @replays
    def forward(
        self,
        graph: FactorGraph,
        f: Tensor | None,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Tensor:
        """New variable features.  # shape: (B?, N, m)"""
        edges = edges or {}
        if not graph.groups:
            lead = () if f is None else f.shape[:-2]
            like = f if f is not None else next(self.parameters())
            return like.new_zeros((*lead, graph.num_variables, self.output.width))
        sent = [
            Sent(self.edge_messages[name], graph.incidence(name), gs.get(name), edges.get(name))  # type: ignore[arg-type]
            for name in graph.groups
        ]
        return to_variables(sent, f, self.aggregation, self.output, graph.structure)

    def extra_repr(self) -> str:
        return f"aggregate={self.aggregation}"
