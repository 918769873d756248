"""A half-layer as a step of compiled code.

Compiled code passes the edges by handle, as integers, so that tracing neither builds nor reads index tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side, Structure, by_handle
from fgnn.nn.aggregate import Aggregation, Kind
from fgnn.nn.backends import half_layer
from fgnn.nn.backends.dense import own_memory
from fgnn.nn.backends.half_call import Ends, GroupCall, HalfCall

_KEPT = (torch.uint8, torch.int32, torch.int64)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Held = Incidence | EdgeTypes | Structure
# Compiled code knows a graph by number only: those used last are kept for its backward pass, if the caller drops them.
_alive = lru_cache(maxsize=32)(by_handle)


def encode(call: HalfCall, empty: Sequence[Incidence | Structure | None]) -> tuple[str, list[Held | None], float]:
    """A call in words, objects that have handles, and γ; the masks of ``call.empty`` are those of ``empty``."""
    held: list[Held | None] = []
    for group in call.groups:
        held += [group.edges, group.types]
    keep, kind = -1 if call.keep is None else _KEPT.index(call.keep), call.aggregation.kind
    options = f"{call.towards} {kind} {call.ends} {call.backend} {_DTYPES.index(call.dtype)} {keep}"
    forms = " ".join([str(group.form) for group in call.groups])
    gamma = call.aggregation.gamma if kind == "softmax" else 1.0
    return f"{options} {int(call.has_f)} {int(call.relu)} {forms}", [*held, *empty], gamma


def decode(
    words: Sequence[str], held: Sequence[Sequence[int] | None], gamma: float, features: Sequence[Tensor], *, real: bool
) -> HalfCall:
    """The inverse of :func:`encode`; if it is not ``real``, for shapes alone."""
    towards, kind, ends, backend, dtype, keep, has_f, relu, *forms = words
    calls = []
    for k, form in enumerate(forms):
        (edges, factors, variables), types = cast(Sequence[int], held[2 * k]), held[2 * k + 1]
        found, typed = (_alive(edges), None if types is None else _alive(types[0])) if real else (None, None)
        calls.append(GroupCall(cast(Incidence, found), typed, factors, variables, int(form)))
    masks = held[2 * len(forms) :]
    empty = tuple(mask_of(_alive(mask[0])) if real and mask is not None else None for mask in masks)
    batch = next((x.shape[0] for x in features if x.dim() == 3), None)
    return HalfCall(
        tuple(calls), cast(Side, towards), Aggregation(cast(Kind, kind), gamma), has_f == "1", batch, cast(Ends, ends),
        relu == "1", empty, _DTYPES[int(dtype)], backend, None if keep == "-1" else _KEPT[int(keep)],
        packed=backend == "torch",
    )  # fmt: skip


def programs_of(handle: int) -> dict[Any, Any]:
    """Where passes keep what they did on the edges, or for the types, with this handle."""
    programs: dict[Any, Any] = _alive(handle).derived("programs", dict)
    return programs


def mask_of(held: Structure | Incidence) -> Tensor | None:
    """True for destinations without edges; None if all have some."""
    return held.isolated() if isinstance(held, Structure) else held.empty_factors()


def forward(call: HalfCall, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The results, and what backward reads besides; kernels keep all in one tensor."""
    one = call.backend == "triton"
    ys, kept = half_layer.forward(call, tensors, packed=one)
    if call.keep is None:
        return ys, []
    return ys, [kept.in_one(call, tensors)] if one else own_memory(kept.tensors)


def shapes(call: HalfCall, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The same, but empty."""
    found = half_layer.shapes(call, tensors)
    return found[: call.results], found[call.results :]


def count_kept(call: HalfCall, tensors: Sequence[Tensor]) -> int:
    """How many tensors are kept."""
    return 1 if call.backend == "triton" else half_layer.count_kept(call, tensors)


def backward(
    call: HalfCall, tensors: Sequence[Tensor], ys: Sequence[Tensor], kept: Sequence[Tensor],
    grads: Sequence[Tensor | None], wants: Sequence[bool],
) -> Sequence[Tensor | None]:  # fmt: skip
    """Gradients at the operands."""
    places = half_layer.places_of(call, tensors)[0] if call.backend == "triton" else None
    read = ys if call.aggregation.kind == "softmax" else ()
    return half_layer.backward(call, tensors, read, half_layer.Kept(list(kept), places), grads, wants)
