"""A half-layer as a step of compiled code.

Compiled code passes the edges by handle, as integers, so that tracing neither builds nor reads index tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from fgnn.graph import Incidence, Side, Structure, by_handle
from fgnn.nn.aggregate import Aggregation, Kind
from fgnn.nn.backends import half_layer
from fgnn.nn.backends.dense import own_memory
from fgnn.nn.backends.half_call import Ends, GroupCall, HalfCall

_KEPT = (torch.uint8, torch.int32, torch.int64)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def encode(call: HalfCall, empty: Sequence[Incidence | Structure | None]) -> tuple[str, list[int], float]:
    """A call in words, integers and γ; the masks of ``call.empty`` are those of ``empty``."""
    numbers, kind = [], call.aggregation.kind
    for group in call.groups:
        numbers += [group.edges.handle, -1 if group.types is None else group.types.handle, group.factors, group.form]
    numbers += [call.groups[0].variables, 1 if call.batch is None else call.batch]
    numbers += [-1 if held is None else held.handle for held in empty]
    keep = -1 if call.keep is None else _KEPT.index(call.keep)
    flags = f"{int(call.has_f)} {int(call.relu)} {int(call.batch is not None)} {keep}"
    words = f"{call.towards} {kind} {call.ends} {call.backend} {flags} {len(call.groups)} {_DTYPES.index(call.dtype)}"
    return words, numbers, call.aggregation.gamma if kind == "softmax" else 1.0


def decode(words: Sequence[str], numbers: Sequence[int], gamma: float, *, real: bool) -> HalfCall:
    """The inverse of :func:`encode`; if it is not ``real``, for shapes alone."""
    towards, kind, ends, backend, has_f, relu, batched, keep, count, dtype = words
    after = 4 * int(count)
    (variables, batch), masks = numbers[after : after + 2], numbers[after + 2 :]
    calls = []
    for k in range(0, after, 4):
        edges, types, factors, form = numbers[k : k + 4]
        held, typed = (by_handle(edges), None if types < 0 else by_handle(types)) if real else (None, None)
        calls.append(GroupCall(cast(Incidence, held), typed, factors, variables, form))
    empty = tuple(mask_of(by_handle(mask)) if real and mask >= 0 else None for mask in masks)
    return HalfCall(
        tuple(calls), cast(Side, towards), Aggregation(cast(Kind, kind), gamma), has_f == "1",
        None if batched == "0" else batch, cast(Ends, ends), relu == "1", empty, _DTYPES[int(dtype)], backend,
        None if keep == "-1" else _KEPT[int(keep)], packed=backend == "torch",
    )  # fmt: skip


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
