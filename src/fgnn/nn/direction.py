"""The two halves of a layer: messages from variables to factors, and from factors to variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, Incidence, Side
from fgnn.nn.aggregate import Aggregation, combine_groups, finish
from fgnn.nn.backends.combine import combine
from fgnn.nn.backends.operator import empty_factors, isolated_variables
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.edge_matrix import EdgeMatrix
from fgnn.nn.functional import aggregate_messages
from fgnn.nn.message import Message
from fgnn.nn.norm import NodeBatchNorm, Norm, make_norm


class EdgeMessages(nn.Module):
    r"""One group's :math:`\mathcal{Q}(t_{ci} \mid \Phi)\, \mathcal{M}([g_c, f_i] \mid \Theta)`, aggregated."""

    def __init__(self, message: Message, matrix: EdgeMatrix) -> None:
        super().__init__()
        if message.out != matrix.columns:
            raise ValueError(f"Expected Q with as many columns as M has outputs, {message.out} (got {matrix.columns})")
        self.message = message
        self.matrix = matrix

    def forward(
        self,
        incidence: Incidence,
        f: Tensor | None,  # shape: (B?, N, d)
        g: Tensor | None,  # shape: (B?, C, d)
        t: EdgeFeatures | None,
        towards: Side,
        aggregation: Aggregation,
    ) -> Tensor:
        """The aggregate at each destination, the identity element without edges.  # shape: (B?, D, m)"""
        message = self.message
        a, b = message.parts(g, f, incidence.num_factors, incidence.num_variables)
        coefficients, weight = self.matrix(t, incidence)
        first: Tensor | None = b
        activation = message.first_activation
        if len(message.tail):
            a, first, activation = message.per_edge(a, b, incidence.factor, incidence.variable), None, "identity"
        return aggregate_messages(
            a, first, incidence, coefficients, weight,
            towards=towards, activation=activation, aggregation=aggregation,
        )  # fmt: skip


class Output(nn.Module):
    """Bias, normalisation and ReLU after the aggregation. None by default, as in Alg. 1."""

    def __init__(self, width: int, *, bias: bool = False, norm: Norm = None, activation: str | None = None) -> None:
        super().__init__()
        if activation not in (None, "relu"):
            raise ValueError(f"Expected activation 'relu' or None (got {activation!r})")
        self.width = width
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.norm = make_norm(norm, width)
        self.activation = activation

    def forward(self, x: Tensor, empty: Tensor | None) -> Tensor:
        """x (..., D, m), which is zero and stays zero where ``empty`` (D,)."""
        if isinstance(self.norm, NodeBatchNorm):
            x = self.norm(x, self.bias, relu=self.activation is not None)
        else:
            x = x if self.bias is None else (x + self.bias).to(x.dtype)
            x = x if self.norm is None else self.norm(x)
            x = x if self.activation is None else x.relu()
        if empty is None or (self.bias is None and self.norm is None):
            return x
        return x.masked_fill(empty.unsqueeze(-1), 0.0)

    def combined(
        self, parts: Sequence[Tensor], aggregation: Aggregation, degree: Tensor | None, empty: Tensor | None
    ) -> Tensor:
        """The same of the aggregates of several groups, in one pass if it can be.

        Args:
            parts: (..., D, m) each, as ``aggregate_messages`` returns them.
            degree: (D,) number of edges over all groups; for a mean.
            empty: (D,) True for destinations without edges, which get zeros.
        """
        bias, relu = (self.bias, self.activation is not None) if self.norm is None else (None, False)
        if aggregation.kind in ("max", "sum") and (len(parts) > 1 or bias is not None or relu or empty is not None):
            x = combine(parts, bias, empty, maximum=aggregation.kind == "max", relu=relu)
            if x is not None and self.norm is None:
                return x
        else:
            x = None
        x = finish(combine_groups(parts, aggregation), degree, empty, aggregation) if x is None else x
        return self.forward(x, empty)


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

    def forward(
        self, incidence: Incidence, f: Tensor | None, g: Tensor | None, t: EdgeFeatures | None = None
    ) -> Tensor:
        """New factor features of the group whose edges are ``incidence``.  # shape: (B?, C, m)"""
        total = self.edge_messages(incidence, f, g, t, "factor", self.aggregation)
        degree = incidence.degree("factor") if self.aggregation.kind == "mean" else None
        return self.output.combined([total], self.aggregation, degree, empty_factors(incidence, total))

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
        widths = {matrix.rows for _, matrix in messages.values()}
        if len(widths) != 1:
            raise ValueError(f"Expected Q of one output width in all groups (got {sorted(widths)})")
        self.aggregation = Aggregation.parse(aggregate)
        self.edge_messages = nn.ModuleDict({name: EdgeMessages(*parts) for name, parts in messages.items()})
        self.output = Output(widths.pop(), bias=bias, norm=norm, activation=activation)

    def forward(
        self,
        graph: FactorGraph,
        f: Tensor | None,
        gs: Mapping[str, Tensor],
        edges: Mapping[str, EdgeFeatures] | None = None,
    ) -> Tensor:
        """New variable features.  # shape: (B?, N, m)"""
        edges = edges or {}
        parts = [
            self.edge_messages[name](
                graph.incidence(name), f, gs.get(name), edges.get(name), "variable", self.aggregation
            )
            for name in graph.groups
        ]
        if not parts:
            lead = () if f is None else f.shape[:-2]
            like = f if f is not None else next(self.parameters())
            return like.new_zeros((*lead, graph.num_variables, self.output.width))
        degree = graph.variable_degree() if self.aggregation.kind == "mean" else None
        empty = isolated_variables(graph.structure, parts[0])
        return self.output.combined(parts, self.aggregation, degree, empty)

    def extra_repr(self) -> str:
        return f"aggregate={self.aggregation}"
