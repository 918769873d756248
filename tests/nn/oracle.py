"""The layer as a plain loop over edges, with M and Q written as in the paper: what every implementation must equal."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fgnn.nn import DenseMatrix, EdgeMatrix, Message, TableMatrix
from fgnn.testing import layer_by_loop


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


layer_loop = partial(layer_by_loop, message=message, matrix=edge_matrix)
