"""``aggregate_messages`` in differentiable torch operations alone: no chunks, nothing kept, no branch on values.

For ``torch.export``, ONNX and the transforms of ``torch.func``, which follow each operation. It holds φ ⊗ h for all
edges at once, so elsewhere the other implementations are faster and smaller.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.choice import EdgeCall


def aggregate_traced(a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall) -> Tensor:
    """See :func:`fgnn.nn.functional.aggregate_messages`."""
    incidence, group, count = call.incidence, call.incidence.group(), call.incidence.num_destinations(call.towards)
    h = a
    if b is not None:
        h = a.index_select(-2, group.factor_index()) + b.index_select(-2, incidence.variable)
    messages = edge_products(h.relu() if call.relu else h, phi, weight.to(h.dtype), call)
    if call.batch is not None and messages.dim() == 2:
        messages = messages.expand(call.batch, *messages.shape)
    if call.towards == "factor" and incidence.arity:  # the edges of a factor are contiguous
        rows = _by_factor(messages, incidence.num_factors, incidence.arity)
        return _over_places(rows, call.aggregation)
    index = group.factor_index() if call.towards == "factor" else incidence.variable
    return reduce_segments(messages, index, count, call.aggregation)


def edge_products(h: Tensor, phi: Tensor | None, weight: Tensor, call: EdgeCall) -> Tensor:
    """Q h of each edge; neither σ nor the aggregation of ``call`` is applied.  # shape: (B?, E, n) -> (B?, E, m)"""
    types, incidence = call.types, call.incidence
    if types is None or phi is not None:
        assert phi is not None
    elif types.num_types == 1:
        return h @ weight[0].T
    elif incidence.arity is not None and types is incidence.positions:
        rows = _by_factor(h, incidence.num_factors, incidence.arity)
        return torch.einsum("...can,amn->...cam", rows, weight).flatten(-3, -2)
    else:
        phi = torch.nn.functional.one_hot(types.index, types.num_types).to(h.dtype)
    outer = (phi.unsqueeze(-1) * h.unsqueeze(-2)).flatten(-2)  # shape: (B?, E, T·n)
    return outer @ weight.transpose(1, 2).flatten(0, 1)


def _by_factor(x: Tensor, factors: int, arity: int) -> Tensor:
    """(..., E, n) as (..., C, A, n)."""
    return x.reshape(*x.shape[:-2], factors, arity, x.shape[-1])


def _over_places(rows: Tensor, aggregation: Aggregation) -> Tensor:
    if aggregation.kind == "max":
        return rows.max(-2).values
    if aggregation.kind == "softmax":
        return (rows * aggregation.gamma).logsumexp(-2) / aggregation.gamma
    return rows.sum(-2)


def reduce_segments(x: Tensor, index: Tensor, count: int, aggregation: Aggregation) -> Tensor:
    """Aggregate rows (..., E, m) with the same index (E,) in 0..count-1; a mean is returned as its sum.

    A segment without rows gets the identity element. The gradient of a maximum goes to the first row that attains it.
    """
    where = index.unsqueeze(-1).expand(x.shape)
    shape = (*x.shape[:-2], count, x.shape[-1])
    if aggregation.kind in ("sum", "mean"):
        return x.new_zeros(shape).scatter_add(-2, where, x)
    largest = x.new_full(shape, -math.inf).scatter_reduce(-2, where, x.detach(), "amax")
    if aggregation.kind == "max":
        return _first_of(largest, x, where) if torch.is_grad_enabled() else largest
    gamma = aggregation.gamma
    base = largest.masked_fill(largest.isneginf(), 0.0)
    total = x.new_zeros(shape).scatter_add(-2, where, (gamma * (x - base.gather(-2, where))).exp())
    empty = largest.isneginf()
    return (base + total.masked_fill(empty, 1.0).log() / gamma).masked_fill(empty, -math.inf)


def _first_of(largest: Tensor, x: Tensor, where: Tensor) -> Tensor:
    """The same maxima, read from the first rows that attain them."""
    rows = x.shape[-2]
    own = x.detach()
    numbers = torch.arange(rows, device=x.device).unsqueeze(-1).expand(x.shape)
    attains = (own == largest.gather(-2, where)) | own.isnan()
    candidates = torch.where(attains, numbers, rows)
    first = torch.full(largest.shape, rows, device=x.device).scatter_reduce(-2, where, candidates, "amin")
    padded = torch.cat([x, x.new_full((*x.shape[:-2], 1, x.shape[-1]), -math.inf)], -2)
    return padded.gather(-2, first)
