"""A half-layer as one differentiable operation: a function of autograd, or a step of compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fgnn.graph import Incidence, Structure, by_handle
from fgnn.nn.backends import differentiable, half_layer
from fgnn.nn.backends.half_call import PER_EDGE, HalfCall, Operands
from fgnn.nn.backends.half_step import encode, mask_of
from fgnn.nn.backends.linear import compiled
from fgnn.nn.backends.steps import Step, take
from fgnn.nn.backends.torch.plain_half import plain_half
from fgnn.nn.backends.triton.layout import layout_of

# Kernels number the places of up to this many edges with a byte.
_BYTE = 256


def run_half(
    call: HalfCall, f: Tensor | None, groups: Sequence[Operands], biases: Sequence[Tensor],
    empty: Sequence[Incidence | Structure | None],
) -> list[Tensor]:  # fmt: skip
    """The results of a half-layer; compiled code looks up the masks of ``call.empty`` in ``empty`` instead."""
    if compiled():
        return take(*_as_step(call, f, groups, biases, empty))
    tensors = call.join(f, groups, biases)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        call = call._replace(keep=_kept_dtype(call, False))
        return list(_HalfLayer.apply(call, *tensors))  # type: ignore[no-untyped-call]
    return half_layer.forward(call, tensors)[0]


def _as_step(
    call: HalfCall, f: Tensor | None, groups: Sequence[Operands], biases: Sequence[Tensor],
    empty: Sequence[Incidence | Structure | None],
) -> tuple[Step, list[tuple[tuple[int, ...], torch.dtype]]]:  # fmt: skip
    """A step, and the shapes and dtypes of its results."""
    if torch.is_grad_enabled():
        call = call._replace(keep=_kept_dtype(call, True))
    words, held, gamma = encode(call, empty)
    step = Step("half", words, held, gamma, call.features(f, groups), call.parameters(groups, biases))
    lead = () if call.batch is None else (call.batch,)
    sizes = [
        ((*lead, group.factors if call.towards == "factor" else group.variables, x.weight.shape[1]), call.dtype)
        for group, x in zip(call.groups, groups, strict=True)
    ]
    # Not `call.results`: torch.compile of torch 2.9 knows no properties of a named tuple.
    return step, sizes[:1] if call.ends == "all" else sizes


def _kept_dtype(call: HalfCall, traced: bool) -> torch.dtype:
    """The dtype that numbers the winning edges of a maximum; in compiled code, by what is known without the edges."""
    if call.backend == "torch":
        return torch.int64
    most: list[int | None] = []
    for group in call.groups:
        edges = group.edges
        bound = edges.arity if call.towards == "factor" else edges.hints.max_degree
        most.append(bound if traced else layout_of(edges, call.towards, group.has(PER_EDGE)).longest)
    return torch.uint8 if all(m is not None and m <= _BYTE for m in most) else torch.int32


class _HalfLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: HalfCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Hooks on saved tensors, such as those of `checkpoint`, must see the same number of them at every call.
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        ys, kept = half_layer.forward(call, tensors, packed=not hooked)
        ctx.set_materialize_grads(False)
        read = ys if call.aggregation.kind == "softmax" else ()
        ctx.save_for_backward(*tensors, *read, *kept.tensors)
        ctx.call, ctx.ends, ctx.places = call, (len(tensors), len(tensors) + len(read)), kept.places
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        first, second = ctx.ends
        saved, wants = ctx.saved_tensors, ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *differentiable.gradients(partial(plain_half, ctx.call), saved[:first], wants, grads)
        kept = half_layer.Kept(saved[second:], ctx.places)
        return None, *half_layer.backward(ctx.call, saved[:first], saved[first:second], kept, grads, wants)


# ---- destinations without edges ------------------------------------------------------------------------------------


def isolated_variables(structure: Structure, like: Tensor) -> Tensor | None:
    """``structure.isolated()``, which compiled code looks up instead of computing it again.  # shape: (N,)"""
    if covers_all(structure) or not compiled():
        return structure.isolated()
    mask: Tensor = _empty(like, structure.handle, structure.num_variables)
    return mask


def empty_factors(incidence: Incidence, like: Tensor) -> Tensor | None:
    """``incidence.empty_factors()``, likewise.  # shape: (C,)"""
    if incidence.arity or not compiled() or incidence.handle < 0:
        return incidence.empty_factors()
    mask: Tensor = _empty(like, incidence.handle, incidence.num_factors)
    return mask


def covers_all(structure: Structure) -> bool:
    """Whether some group is known to have an edge at every variable."""
    return any(hints.covers_all for name, hints in structure.hints.items() if name in structure.groups)


@torch.library.custom_op("fgnn::empty", mutates_args=())
def _empty(like: Tensor, handle: int, count: int) -> Tensor:
    mask = mask_of(by_handle(handle))
    return like.new_zeros(count, dtype=torch.bool) if mask is None else mask.clone()


@_empty.register_fake
def _(like: Tensor, handle: int, count: int) -> Tensor:
    return like.new_empty(count, dtype=torch.bool)
