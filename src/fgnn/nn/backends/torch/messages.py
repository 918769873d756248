"""The plain torch form of ``aggregate_messages``: chunked, and nothing per edge kept for backward but the winner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn.aggregate import Aggregation, reduce_edges
from fgnn.nn.backends.torch import products
from fgnn.nn.backends.torch.gather import Gather
from fgnn.nn.backends.torch.max_backward import backward_max
from fgnn.nn.backends.torch.projection import project_max
from fgnn.nn.backends.torch.sums import backward_sum, forward_sum

_SUM = Aggregation("sum")


@dataclass(frozen=True, eq=False)
class _Call:
    """What does not carry gradient."""

    incidence: Incidence
    towards: Side
    relu: bool
    aggregation: Aggregation
    types: EdgeTypes | None
    differentiate: bool

    @property
    def sums(self) -> bool:
        """Whether messages are added up; a mean is divided by the caller."""
        return self.aggregation.kind in ("sum", "mean")


def aggregate_plain(
    a: Tensor,
    b: Tensor | None,
    incidence: Incidence,
    coefficients: Tensor | EdgeTypes,
    weight: Tensor,
    towards: Side,
    activation: str,
    aggregation: Aggregation,
) -> Tensor:
    """See :func:`fgnn.nn.functional.aggregate_messages`."""
    types = coefficients if isinstance(coefficients, EdgeTypes) else None
    phi = None if isinstance(coefficients, EdgeTypes) else coefficients
    sizes = [t.shape[0] for t in (a, b, phi) if t is not None and t.dim() == 3]
    batch = sizes[0] if sizes else 1
    if any(size != batch for size in sizes):
        raise ValueError(f"Expected the same number of samples in all features (got {sizes})")
    weight = weight.to(a.dtype)
    # Node axis first: then an edge's rows of all samples lie together, and shared Q is one product over samples.
    a = _node_first(a, batch)
    b = None if b is None else _node_first(b, batch)
    # inside forward gradients look needed even under no_grad, so it is asked here
    needs = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (a, b, phi, weight))
    call = _Call(incidence, towards, activation == "relu", aggregation, types, needs)
    out: Tensor = _Aggregate.apply(a, b, phi, weight, call)  # type: ignore[no-untyped-call]
    return out.transpose(0, 1) if sizes else out.squeeze(1)


def _node_first(x: Tensor, batch: int) -> Tensor:
    if x.dim() == 2:
        return x.unsqueeze(1).expand(-1, batch, -1)
    return x.transpose(0, 1)


class _Aggregate(torch.autograd.Function):
    """Forward keeps the winning edge of each entry; backward makes h and φ ⊗ h again, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: _Call) -> Tensor:
        gather = Gather(a, b, call.incidence, call.relu)
        needs = call.differentiate
        ctx.call = call
        if phi is not None and call.sums and not products.shares_matrices(phi, gather.batch):
            ctx.save_for_backward(a, b, phi, weight, None, None)
            return forward_sum(gather, phi, weight, call.towards)
        if phi is not None and _in_cache(call, gather, phi):
            out, arg = project_max(gather, phi, weight, needs)
        else:
            messages = products.forward(gather, phi, call.types, weight)
            out, arg = reduce_edges(messages, call.incidence, call.towards, call.aggregation, arg=needs)
        kept = out if needs and call.aggregation.kind == "softmax" else None
        ctx.save_for_backward(a, b, phi, weight, arg, kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # forward ran without autocast; backward may be called inside one, which would widen its sums
        with torch.autocast(grad.device.type, enabled=False):
            return _Aggregate._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, phi, weight, arg, out = ctx.saved_tensors
        call: _Call = ctx.call
        gather = Gather(a, b, call.incidence, call.relu)
        wants = ctx.needs_input_grad[:4]
        outer = phi is not None and not products.shares_matrices(phi, gather.batch)
        if outer and arg is not None:
            node, d_phi, d_weight = backward_max(grad, arg, gather, phi, weight, call.towards, wants)
        elif outer and call.sums:
            node, d_phi, d_weight = backward_sum(grad, gather, phi, weight, call.towards, wants)
        else:
            upstream = _edge_gradient(call, grad, arg, out, gather, phi, weight)
            node, d_phi, d_weight = products.backward(upstream, gather, phi, call.types, weight, wants)
        d_a = d_b = None
        if node is not None:
            if b is None:
                d_a = node
            else:
                d_a = reduce_edges(node, call.incidence, "factor", _SUM)[0] if ctx.needs_input_grad[0] else None
                d_b = reduce_edges(node, call.incidence, "variable", _SUM)[0] if ctx.needs_input_grad[1] else None
        return d_a, d_b, d_phi, d_weight, None


def _in_cache(call: _Call, gather: Gather, phi: Tensor) -> bool:
    """Whether the messages of a factor lie together and are made on a CPU: then none is written to memory."""
    if not phi.is_cpu or call.towards != "factor" or call.aggregation.kind != "max":
        return False
    return bool(call.incidence.arity) and not products.shares_matrices(phi, gather.batch)


def _edge_gradient(
    call: _Call,
    grad: Tensor,  # shape: (D, B, m)
    arg: Tensor | None,
    out: Tensor | None,
    gather: Gather,
    phi: Tensor | None,
    weight: Tensor,
) -> Tensor:
    """The gradient at each edge's message.  # shape: (E, B, m)"""
    if arg is not None:
        spread = grad.new_zeros((call.incidence.num_edges, *grad.shape[1:]))
        if not call.incidence.has_empty(call.towards):
            return spread.scatter_(0, arg, grad)
        if not call.incidence.num_edges:
            return spread
        return spread.scatter_add_(0, arg.clamp_min(0), grad.masked_fill(arg < 0, 0.0))
    destination = call.incidence.destination(call.towards)
    spread = grad.index_select(0, destination)
    if call.aggregation.kind == "softmax":
        assert out is not None
        messages = products.forward(gather, phi, call.types, weight)
        share = (call.aggregation.gamma * (messages - out.index_select(0, destination))).exp_()
        spread = spread * share
    return spread
