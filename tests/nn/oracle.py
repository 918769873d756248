"""The layer as a plain Python loop over edges, one sample at a time: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn import FactorGraph
from fgnn.nn import Aggregation, DenseMatrix, EdgeMatrix, FGNNLayer, Message, TableMatrix


def edge_matrix(matrix: EdgeMatrix, t: Tensor) -> Tensor:
    """Q(t) for one edge, as the paper writes it."""
    if isinstance(matrix, TableMatrix):
        return matrix.weight[int(t) if t.dim() == 0 else int(t.argmax())]
    if isinstance(matrix, DenseMatrix):
        # an MLP whose last layer yields all m * n entries
        last = matrix.weight[:-1].reshape(matrix.terms - 1, -1).T
        entries = torch.relu(matrix.net(t)) @ last.T + matrix.weight[-1].reshape(-1)
        return entries.reshape(matrix.rows, matrix.columns)
    total = torch.zeros(matrix.rows, matrix.columns, dtype=t.dtype)
    for coefficient, term in zip(matrix.net(t), matrix.weight, strict=True):
        total = total + coefficient * term
    return total


def message(m: Message, g: Tensor, f: Tensor) -> Tensor:
    """M([g, f]) on the concatenation."""
    h = torch.cat([m.factor_weight, m.variable_weight], 1) @ torch.cat([g, f])
    h = h if m.bias is None else h + m.bias
    for layer in m.tail:
        h = layer(torch.relu(h) if m.activation == "relu" else h)
    return torch.relu(h) if m.final_activation == "relu" else h


def aggregate(rows: list[Tensor], how: Aggregation, width: int) -> Tensor:
    """What reaches one node."""
    if not rows:
        return torch.zeros(width, dtype=torch.float64)
    if how.kind == "max":
        best = rows[0]
        for row in rows[1:]:
            best = torch.where(row > best, row, best)
        return best
    stack = torch.stack(rows)
    if how.kind == "softmax":
        return (how.gamma * stack).exp().sum(0).log() / how.gamma
    return stack.sum(0) if how.kind == "sum" else stack.mean(0)


def layer_loop(
    layer: FGNNLayer,
    graph: FactorGraph,
    f: Tensor,  # shape: (N, d)
    gs: dict[str, Tensor],
    edges: dict[str, Tensor],  # (E, t) or types (E,)
) -> tuple[Tensor, dict[str, Tensor]]:
    """Alg. 1, edge by edge."""
    made = {}
    to_variable: list[list[Tensor]] = [[] for _ in range(graph.num_variables)]
    for name, group in graph.groups.items():
        half = layer.variable_to_factor[name]
        rows = []
        e = 0
        for c, scope in enumerate(group.lists()):
            got = []
            for i in scope:
                q = edge_matrix(half.edge_messages.matrix, edges[name][e])
                got.append(q @ message(half.edge_messages.message, gs[name][c], f[i]))
                e += 1
            rows.append(aggregate(got, half.aggregation, half.output.width))
        made[name] = torch.stack(rows)
    seen = made if layer.schedule == "sequential" else gs
    back = layer.factor_to_variable
    for name, group in graph.groups.items():
        parts = back.edge_messages[name]
        e = 0
        for c, scope in enumerate(group.lists()):
            for i in scope:
                q = edge_matrix(parts.matrix, edges[name][e])
                to_variable[i].append(q @ message(parts.message, seen[name][c], f[i]))
                e += 1
    new = torch.stack([aggregate(rows, back.aggregation, back.output.width) for rows in to_variable])
    return new, made
