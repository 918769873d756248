"""``aggregate_messages`` as one operator for ``torch.compile``, whatever the backend.

Compiled code passes the edges by handle, as an integer, so that tracing neither builds nor reads index tensors: one
graph without breaks, for any number of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fgnn.graph import Incidence, Side, Structure, by_handle
from fgnn.nn.aggregate import Aggregation, Kind
from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.linear import compiled
from fgnn.nn.backends.torch import aggregate as by_torch
from fgnn.nn.backends.torch.chunks import EdgeInputs
from fgnn.nn.backends.triton import aggregate as by_triton

# Kernels number the places of up to this many edges with a byte.
_BYTE = 256


def aggregate_compiled(
    a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall, backend: str
) -> Tensor:
    """See :func:`fgnn.nn.functional.aggregate_messages`."""
    incidence, towards, how = call.incidence, call.towards, call.aggregation
    most = incidence.arity if towards == "factor" else incidence.hints.max_degree
    place = "none"
    if how.kind == "max" and torch.is_grad_enabled():
        place = "edge" if backend == "torch" else "byte" if most is not None and most <= _BYTE else "int"
    out: Tensor = _op(
        a, b, phi, weight.to(a.dtype), incidence.handle, -1 if call.types is None else call.types.handle,
        incidence.num_destinations(towards), call.batch or 1, towards, call.relu, how.kind,
        how.gamma if how.kind == "softmax" else 1.0, backend, place,
    )[0]  # fmt: skip
    return out.squeeze(0) if call.batch is None else out


def _call(edges: int, types: int, batch: int, towards: str, relu: bool, kind: str, gamma: float) -> EdgeCall:
    """The call that the operator's arguments stand for; an operator has strings where the call has literals."""
    typed = None if types < 0 else by_handle(types)
    how = Aggregation(cast(Kind, kind), gamma)
    return EdgeCall(by_handle(edges), cast(Side, towards), relu, how, typed, batch)


_ARG = {"none": torch.uint8, "byte": torch.uint8, "int": torch.int32, "edge": torch.int64}


@torch.library.custom_op("fgnn::aggregate", mutates_args=())
def _op(
    a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, edges: int, types: int, count: int, batch: int,
    towards: str, relu: bool, kind: str, gamma: float, backend: str, place: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    call = _call(edges, types, batch, towards, relu, kind, gamma)
    if backend == "triton":
        out, arg = by_triton.forward(a, b, phi, weight, call)
        return out, a.new_empty(0, dtype=torch.uint8) if place == "none" else arg.to(_ARG[place])
    values, winner = by_torch.forward(_inputs(a, b, phi, weight, call), place == "edge")
    none = a.new_empty(0, dtype=_ARG[place])
    return values.contiguous().transpose(0, 1), none if winner is None else winner


@_op.register_fake
def _(
    a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, edges: int, types: int, count: int, batch: int,
    towards: str, relu: bool, kind: str, gamma: float, backend: str, place: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    m = weight.shape[1]
    first = a.new_empty((batch, count, m)) if backend == "triton" else a.new_empty((count, batch, m)).transpose(0, 1)
    shape = (0,) if place == "none" else (count, batch, m) if place == "edge" else (batch, count, m)
    return first, a.new_empty(shape, dtype=_ARG[place])


@torch.library.custom_op("fgnn::aggregate_backward", mutates_args=())
def _op_backward(
    grad: Tensor, out: Tensor, arg: Tensor, a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor,
    edges: int, types: int, batch: int, towards: str, relu: bool, kind: str, gamma: float, backend: str,
    wants: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    call = _call(edges, types, batch, towards, relu, kind, gamma)
    if backend == "triton":
        grads: Sequence[Tensor | None] = by_triton.backward(grad, arg, (a, b, phi, weight), call, wants)
    else:
        winner = arg if kind == "max" else None
        result = out.transpose(0, 1) if kind == "softmax" else None
        inputs = _inputs(a, b, phi, weight, call)
        d_a, d_b, d_phi, d_weight = by_torch.backward(grad.transpose(0, 1), inputs, winner, result, wants)
        grads = _as_given(d_a, a), None if b is None else _as_given(d_b, b), d_phi, d_weight
    none = a.new_empty(0)

    def gradient(x: Tensor | None, g: Tensor | None, wanted: bool) -> Tensor:
        if x is None or not wanted:
            return none.clone()
        return x.new_zeros(x.shape) if g is None else g.to(x.dtype).contiguous()

    first, second, third, fourth = map(gradient, (a, b, phi, weight), grads, wants)
    return first, second, third, fourth


@_op_backward.register_fake
def _(
    grad: Tensor, out: Tensor, arg: Tensor, a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor,
    edges: int, types: int, batch: int, towards: str, relu: bool, kind: str, gamma: float, backend: str,
    wants: list[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (a, b, phi, weight)
    return tuple(
        a.new_empty(0) if x is None or not want else x.new_empty(x.shape) for x, want in zip(given, wants, strict=True)
    )


def _inputs(a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall) -> EdgeInputs:
    batch = call.batch or 1
    nodes = None if b is None else by_torch.node_first(b, batch)
    return EdgeInputs(by_torch.node_first(a, batch), nodes, phi, weight, call)


def _as_given(grad: Tensor | None, x: Tensor) -> Tensor | None:
    """A gradient (nodes, B, n) in the shape of x, which has B or is shared by all samples."""
    return None if grad is None else grad.sum(1) if x.dim() == 2 else grad.transpose(0, 1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, b, phi, weight, edges, types, _, *rest, _ = inputs
    ctx.save_for_backward(*output, a, b, phi, weight)
    ctx.options = edges, types, *rest


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    out, arg, *given = ctx.saved_tensors
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[:4]]
    grads = _op_backward(grad, out, arg, *given, *ctx.options, wants)
    return *(g if want else None for g, want in zip(grads, wants, strict=True)), *(None,) * 10


_op.register_autograd(_backward, setup_context=_save)


# ---- destinations without edges ------------------------------------------------------------------------------------


def isolated_variables(structure: Structure, like: Tensor) -> Tensor | None:
    """``structure.isolated()``, which compiled code looks up instead of computing it again.  # shape: (N,)"""
    covered = any(hints.covers_all for name, hints in structure.hints.items() if name in structure.groups)
    if covered or not compiled():
        return structure.isolated()
    mask: Tensor = _empty(like, structure.handle, structure.num_variables, "variable")
    return mask


def empty_factors(incidence: Incidence, like: Tensor) -> Tensor | None:
    """``incidence.empty_factors()``, likewise.  # shape: (C,)"""
    if incidence.arity or not compiled():
        return incidence.empty_factors()
    mask: Tensor = _empty(like, incidence.handle, incidence.num_factors, "factor")
    return mask


@torch.library.custom_op("fgnn::empty", mutates_args=())
def _empty(like: Tensor, edges: int, count: int, towards: str) -> Tensor:
    held = by_handle(edges)
    mask: Tensor | None = held.isolated() if towards == "variable" else held.empty_factors()
    return like.new_zeros(count, dtype=torch.bool) if mask is None else mask.clone()


@_empty.register_fake
def _(like: Tensor, edges: int, count: int, towards: str) -> Tensor:
    return like.new_empty(count, dtype=torch.bool)
