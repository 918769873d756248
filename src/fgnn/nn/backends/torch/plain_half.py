"""A half-layer in plain differentiable operations, from what the fused one is called with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from fgnn.nn.backends import edge_terms
from fgnn.nn.backends.choice import EdgeCall, no_autocast
from fgnn.nn.backends.half_call import BY_POSITION, PER_EDGE, RELU, GroupCall, HalfCall, Operands
from fgnn.nn.backends.torch.traced import aggregate_traced


def plain_half(call: HalfCall, flat: Sequence[Tensor]) -> list[Tensor]:
    """The results of :func:`fgnn.nn.backends.half_layer.forward`; holds φ ⊗ h for all edges at once."""
    with no_autocast(flat[0].device):
        f, groups, biases = call.split(flat)
        parts = [_aggregate(call, group, f, x) for group, x in zip(call.groups, groups, strict=True)]
        if call.ends == "none":
            return parts
        results = [parts] if call.ends == "all" else [[part] for part in parts]
        return [_finish(call, some, biases[k] if biases else None, call.empty[k]) for k, some in enumerate(results)]


def _aggregate(call: HalfCall, group: GroupCall, f: Tensor | None, x: Operands) -> Tensor:
    width, dtype = x.weight.shape[2], call.dtype
    a, b = x.a, x.b
    if x.factor_weight is not None:
        a = _linear(x.a, x.factor_weight, x.bias, dtype)
    elif a is None:
        row = x.weight.new_zeros(width) if x.bias is None else x.bias
        a = row.expand(group.factors, -1)
    if x.variable_weight is not None:
        assert f is not None
        b = _linear(f, x.variable_weight, None, dtype)
    elif b is None and not group.has(PER_EDGE):
        b = x.weight.new_zeros((group.variables, width))
    phi, weight = _terms(call, group, x)
    edges = EdgeCall(group.edges, call.towards, group.has(RELU), call.aggregation, group.types, call.batch)
    return aggregate_traced(a.to(dtype), None if b is None else b.to(dtype), phi, weight.to(dtype), edges)


def _terms(call: HalfCall, group: GroupCall, x: Operands) -> tuple[Tensor | None, Tensor]:
    """φ and W; by position, None and Q."""
    if not x.net:
        return (None if x.t is None else x.t.to(call.dtype)), x.weight
    by_position, constant = group.has(BY_POSITION), group.terms.constant
    phi = x.t
    for k in range(0, len(x.net), 2):
        phi = _linear(phi, x.net[k], x.net[k + 1], x.weight.dtype if by_position else call.dtype)
        phi = phi.relu() if constant or k + 2 < len(x.net) else phi
    if constant:
        phi = torch.cat([phi, phi.new_ones((*phi.shape[:-1], 1))], -1)
    return (None, edge_terms.matrices(phi, x.weight)) if by_position else (phi, x.weight)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    return linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


def _finish(call: HalfCall, parts: Sequence[Tensor], bias: Tensor | None, empty: Tensor | None) -> Tensor:
    """See :func:`fgnn.nn.backends.combine.forward`."""
    y = parts[0]
    for part in parts[1:]:
        y = torch.where((part > y) | part.isnan(), part, y) if call.aggregation.kind == "max" else y + part
    if bias is not None:
        y = (y + bias).to(y.dtype)
    if call.relu:
        y = y.relu()
    return y if empty is None else y.masked_fill(empty.unsqueeze(-1), 0.0)
