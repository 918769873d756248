"""``aggregate_messages`` in plain torch, in chunks, without autograd.

Forward keeps only the winning edge of each entry; backward recomputes h and φ ⊗ h, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.torch import edge_messages, typed_tiles
from fgnn.nn.backends.torch.by_destination import backward_max, backward_sum, forward_sum
from fgnn.nn.backends.torch.chunks import EdgeInputs
from fgnn.nn.backends.torch.reduce import reduce_edges

_SUM = Aggregation("sum")


def node_first(x: Tensor, batch: int) -> Tensor:
    """(nodes, B, n): rows of an edge are contiguous over samples, and a shared Q is one product over samples."""
    return x.unsqueeze(1).expand(-1, batch, -1) if x.dim() == 2 else x.transpose(0, 1)


def forward(inputs: EdgeInputs, differentiate: bool) -> tuple[Tensor, Tensor | None]:
    """The aggregate (D, B, m), and for a maximum with ``differentiate`` the edge that attains each entry."""
    call, kind, a = inputs.call, inputs.call.aggregation.kind, inputs.a
    per_sample = inputs.phi is not None and not edge_messages.shares_matrices(inputs)
    if per_sample and kind in ("sum", "mean"):  # the caller divides a mean
        return forward_sum(inputs), None
    if per_sample and a.is_cpu and kind == "max" and call.towards == "factor" and call.incidence.arity:
        return edge_messages.project_max(inputs, differentiate)
    if call.types is not None:
        return typed_tiles.forward(inputs, call.types, differentiate)
    messages = edge_messages.forward(inputs)
    return reduce_edges(messages, call.incidence, call.towards, call.aggregation, arg=differentiate)


def backward(
    grad: Tensor, inputs: EdgeInputs, arg: Tensor | None, out: Tensor | None, wants: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients at a, b, φ and W, None for those not wanted; ``out`` is read for a softmax only."""
    call = inputs.call
    per_sample = inputs.phi is not None and not edge_messages.shares_matrices(inputs)
    # Forward ran without autocast; backward may be called under it, which would change the precision of its sums.
    with torch.autocast(grad.device.type, enabled=False):
        if call.types is not None:
            return typed_tiles.backward(grad, inputs, call.types, arg, out, wants)
        if per_sample and arg is not None:
            d_node, d_phi, d_weight = backward_max(grad, arg, inputs, wants)
        elif per_sample and call.aggregation.kind in ("sum", "mean"):
            d_node, d_phi, d_weight = backward_sum(grad, inputs, wants)
        else:
            d_node, d_phi, d_weight = edge_messages.backward(_edge_gradient(inputs, grad, arg, out), inputs, wants)
        if d_node is None or inputs.b is None:
            return d_node, None, d_phi, d_weight
        d_a = reduce_edges(d_node, call.incidence, "factor", _SUM)[0] if wants[0] else None
        d_b = reduce_edges(d_node, call.incidence, "variable", _SUM)[0] if wants[1] else None
        return d_a, d_b, d_phi, d_weight


def _edge_gradient(inputs: EdgeInputs, grad: Tensor, arg: Tensor | None, out: Tensor | None) -> Tensor:
    """The gradient at each edge's message.  # shape: (D, B, m) -> (E, B, m)"""
    call = inputs.call
    if arg is not None:
        spread = grad.new_zeros((call.incidence.num_edges, *grad.shape[1:]))
        if not call.incidence.has_empty(call.towards):
            return spread.scatter_(0, arg, grad)
        if not call.incidence.num_edges:
            return spread
        return spread.scatter_add_(0, arg.clamp_min(0), grad.masked_fill(arg < 0, 0.0))
    destination = call.incidence.destination(call.towards)
    spread = grad.index_select(0, destination)
    if out is not None:  # softmax: each edge's share
        messages = edge_messages.forward(inputs)
        spread = spread * (call.aggregation.gamma * (messages - out.index_select(0, destination))).exp_()
    return spread
