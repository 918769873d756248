"""A half-layer as one differentiable operation: a function of autograd, and an operator for ``torch.compile``.

Compiled code passes the edges by handle, as integers, so that tracing neither builds nor reads index tensors: one
graph without breaks, for any number of samples. It has one node where separate operations have dozens, each of which
takes a while to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.graph import Incidence, Side, Structure, by_handle
from fgnn.nn.aggregate import Aggregation, Kind
from fgnn.nn.backends import half_layer
from fgnn.nn.backends.dense import own_memory
from fgnn.nn.backends.half_call import PER_EDGE, Ends, GroupCall, HalfCall
from fgnn.nn.backends.linear import compiled
from fgnn.nn.backends.triton.layout import layout_of

# Kernels number the places of up to this many edges with a byte.
_BYTE = 256


def run_half(call: HalfCall, tensors: Sequence[Tensor], empty: Sequence[Incidence | Structure | None]) -> list[Tensor]:
    """The results of a half-layer; compiled code looks up the masks of ``call.empty`` in ``empty`` instead."""
    traced = compiled()
    if torch.is_grad_enabled() and (traced or any(x.requires_grad for x in tensors)):
        call = call._replace(keep=_kept_dtype(call, traced))
    if not traced:
        if call.keep is None:
            return half_layer.forward(call, tensors)[0]
        return list(_HalfLayer.apply(call, *tensors))  # type: ignore[no-untyped-call]
    groups, kind = [], call.aggregation.kind
    for group in call.groups:
        groups += [group.edges.handle, -1 if group.types is None else group.types.handle, group.factors, group.form]
    sizes = [call.groups[0].variables, 1 if call.batch is None else call.batch]
    masks = [-1 if held is None else held.handle for held in empty]
    keep = -1 if call.keep is None else _KEPT.index(call.keep)
    flags = f"{int(call.has_f)} {int(call.relu)} {int(call.batch is not None)} {keep}"
    words = f"{call.towards} {kind} {call.ends} {call.backend} {flags}"
    gamma = call.aggregation.gamma if kind == "softmax" else 1.0
    out: list[Tensor] = _op(list(tensors), groups, sizes, masks, words, gamma, call.dtype)
    return out[: call.results]


_KEPT = (torch.uint8, torch.int32, torch.int64)


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
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        first, second = ctx.ends
        saved = ctx.saved_tensors
        kept = half_layer.Kept(saved[second:], ctx.places)
        wants = ctx.needs_input_grad[1:]
        return None, *half_layer.backward(ctx.call, saved[:first], saved[first:second], kept, grads, wants)


# ---- for torch.compile ---------------------------------------------------------------------------------------------


def _call(
    groups: list[int], sizes: list[int], masks: list[int], words: str, gamma: float, dtype: torch.dtype, *, real: bool
) -> HalfCall:
    """The call that the operator's arguments stand for; if it is not ``real``, for shapes alone."""
    towards, kind, ends, backend, has_f, relu, batched, keep = words.split()
    variables, batch = sizes
    calls = []
    for k in range(0, len(groups), 4):
        edges, types, factors, form = groups[k : k + 4]
        held, typed = (by_handle(edges), None if types < 0 else by_handle(types)) if real else (None, None)
        calls.append(GroupCall(cast(Incidence, held), typed, factors, variables, form))
    empty = tuple(_mask(by_handle(mask)) if real and mask >= 0 else None for mask in masks)
    return HalfCall(
        tuple(calls), cast(Side, towards), Aggregation(cast(Kind, kind), gamma), has_f == "1",
        None if batched == "0" else batch, cast(Ends, ends), relu == "1", empty, dtype, backend,
        None if keep == "-1" else _KEPT[int(keep)], packed=backend == "torch",
    )  # fmt: skip


@torch.library.custom_op("fgnn::half_layer", mutates_args=())
def _op(
    tensors: list[Tensor], groups: list[int], sizes: list[int], masks: list[int], words: str, gamma: float,
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    call = _call(groups, sizes, masks, words, gamma, dtype, real=True)
    one = call.backend == "triton"
    ys, kept = half_layer.forward(call, tensors, packed=one)
    if call.keep is None:
        return ys
    return [*ys, kept.in_one(call, tensors)] if one else [*ys, *own_memory(kept.tensors)]


@_op.register_fake
def _(
    tensors: list[Tensor], groups: list[int], sizes: list[int], masks: list[int], words: str, gamma: float,
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    return half_layer.shapes(_call(groups, sizes, masks, words, gamma, dtype, real=False), tensors)


@torch.library.custom_op("fgnn::half_layer_backward", mutates_args=())
def _op_backward(
    grads: list[Tensor], given: list[bool], tensors: list[Tensor], ys: list[Tensor], kept: list[Tensor],
    wants: list[bool], groups: list[int], sizes: list[int], masks: list[int], words: str, gamma: float,
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    call = _call(groups, sizes, masks, words, gamma, dtype, real=True)
    rest = iter(grads)
    upstream = [next(rest) if there else None for there in given]
    places = half_layer.places_of(call, tensors)[0] if call.backend == "triton" else None
    found = half_layer.backward(call, tensors, ys, half_layer.Kept(kept, places), upstream, wants)
    wanted = ((g, x) for g, x, want in zip(found, tensors, wants, strict=True) if want)
    return own_memory(x.new_zeros(x.shape) if g is None else g for g, x in wanted)


@_op_backward.register_fake
def _(
    grads: list[Tensor], given: list[bool], tensors: list[Tensor], ys: list[Tensor], kept: list[Tensor],
    wants: list[bool], groups: list[int], sizes: list[int], masks: list[int], words: str, gamma: float,
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    return [x.new_empty(x.shape) for x, want in zip(tensors, wants, strict=True) if want]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, *ctx.options = inputs
    groups, _, _, words, _, _ = ctx.options
    _, kind, ends, *_ = words.split()
    results = 1 if ends == "all" else len(groups) // 4
    read = output[:results] if kind == "softmax" else []
    ctx.save_for_backward(*tensors, *read, *output[results:])
    ctx.ends = len(tensors), len(tensors) + len(read), results


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    first, second, results = ctx.ends
    saved = list(ctx.saved_tensors)
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[0]]
    some = [g for g in grads[:results] if g is not None]
    given = [g is not None for g in grads[:results]]
    found = iter(_op_backward(some, given, saved[:first], saved[first:second], saved[second:], wants, *ctx.options))
    return [next(found) if want else None for want in wants], *(None,) * len(ctx.options)


_op.register_autograd(_backward, setup_context=_save)


# ---- destinations without edges ------------------------------------------------------------------------------------


def isolated_variables(structure: Structure, like: Tensor) -> Tensor | None:
    """``structure.isolated()``, which compiled code looks up instead of computing it again.  # shape: (N,)"""
    if covers_all(structure) or not compiled():
        return structure.isolated()
    mask: Tensor = _empty(like, structure.handle, structure.num_variables)
    return mask


def empty_factors(incidence: Incidence, like: Tensor) -> Tensor | None:
    """``incidence.empty_factors()``, likewise.  # shape: (C,)"""
    if incidence.arity or not compiled():
        return incidence.empty_factors()
    mask: Tensor = _empty(like, incidence.handle, incidence.num_factors)
    return mask


def covers_all(structure: Structure) -> bool:
    """Whether some group is known to have an edge at every variable."""
    return any(hints.covers_all for name, hints in structure.hints.items() if name in structure.groups)


def _mask(held: Structure | Incidence) -> Tensor | None:
    return held.isolated() if isinstance(held, Structure) else held.empty_factors()


@torch.library.custom_op("fgnn::empty", mutates_args=())
def _empty(like: Tensor, handle: int, count: int) -> Tensor:
    mask = _mask(by_handle(handle))
    return like.new_zeros(count, dtype=torch.bool) if mask is None else mask.clone()


@_empty.register_fake
def _(like: Tensor, handle: int, count: int) -> Tensor:
    return like.new_empty(count, dtype=torch.bool)
