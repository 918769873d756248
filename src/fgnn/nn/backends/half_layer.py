r"""A half-layer in one pass each way, without autograd: projections, Q, aggregation over all groups, bias and ReLU.

.. math:: y = \sigma\Big(\operatorname{agg}_{e} Q(t_e)\, \sigma(\Theta_g\, g_c + \beta + \Theta_f f_i) + \beta'\Big)

What the caller has computed is given as it is: the two parts of M instead of features and Θ, or φ instead of t and a
network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends import combine
from fgnn.nn.backends.choice import EdgeCall, no_autocast
from fgnn.nn.backends.half_before import (
    EdgeGradients,
    Prepared,
    prepare,
    prepare_backward,
    restore,
    small_parts,
    to_keep,
    wants_net,
)
from fgnn.nn.backends.half_call import BY_POSITION, RELU, GroupCall, HalfCall, Operands
from fgnn.nn.backends.torch import aggregate as by_torch
from fgnn.nn.backends.torch.chunks import EdgeInputs
from fgnn.nn.backends.triton import aggregate as by_triton
from fgnn.nn.backends.triton.combine import PARTS, End
from fgnn.nn.backends.triton.late_sum import LateSum
from fgnn.nn.backends.triton.memory_plan import aligned
from fgnn.nn.backends.triton.replay import replayed
from fgnn.nn.backends.triton.tape import Place


class Kept(NamedTuple):
    """What else backward reads: the tensors themselves, or fewer that contain them, with their places."""

    tensors: list[Tensor]
    places: list[Place] | None = None

    def unpacked(self) -> list[Tensor]:
        """The tensors."""
        return self.tensors if self.places is None else [x.within(self.tensors[x.buffer]) for x in self.places]

    def in_one(self, call: HalfCall, flat: Sequence[Tensor]) -> Tensor:
        """One tensor that holds them all, as :func:`places_of` says."""
        places, size = places_of(call, flat)
        if self.places == places:
            return self.tensors[0]
        out = flat[0].new_empty(size, dtype=torch.uint8)
        for place, x in zip(places, self.unpacked(), strict=True):
            place.within(out).copy_(x)
        return out


def forward(call: HalfCall, flat: Sequence[Tensor], packed: bool = False) -> tuple[list[Tensor], Kept]:
    """The results, contiguous, and what :func:`backward` reads besides; if ``packed``, where possible in one tensor."""
    with no_autocast(flat[0].device):  # all operands are rounded here
        if call.backend != "triton":
            ys, kept = _forward(call, flat)
            return ys, Kept(kept)
        found, places = replayed(
            call.programs, (packed, call.key), flat, lambda: list(chain(*_forward(call, flat))),
            call.results if packed else None,
        )  # fmt: skip
        return found[: call.results], Kept(found[call.results :], places)


def _forward(call: HalfCall, flat: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    f, groups, biases = call.split(flat)
    parts: list[Tensor] = []
    kept: list[Tensor] = []
    prepared = prepare(call, f, groups)
    for group, x, h, (part, arg) in zip(call.groups, groups, prepared, _aggregate(call, prepared), strict=True):
        parts.append(part)
        kept += to_keep(call, group, x, h, arg) if call.keep is not None else []
    if call.ends == "none":
        return [_as_called(call, part) for part in parts], kept
    results = [parts] if call.ends == "all" else [[part] for part in parts]
    ends = [End(some, biases[k] if biases else None, call.empty[k]) for k, some in enumerate(results)]
    found = combine.forward(ends, call.aggregation.kind == "max", call.relu, _fused(call))
    return [_as_called(call, y) for y, _ in found], kept + [which.contiguous() for _, which in found]


def backward(
    call: HalfCall, flat: Sequence[Tensor], ys: Sequence[Tensor], kept: Kept, grads: Sequence[Tensor | None],
    wants: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients at the operands, None for those not wanted; ``ys`` are read for a softmax only."""
    with no_autocast(flat[0].device):  # it would change the precision of sums
        if call.backend != "triton":
            return _backward(call, flat, ys, kept.tensors, grads, wants)
        return replayed(
            call.programs, (*wants, *(kept.places or ()), call.key), [*flat, *ys, *kept.tensors, *grads],
            lambda: _backward(call, flat, ys, kept.unpacked(), grads, wants),
        )[0]  # fmt: skip


def _backward(
    call: HalfCall, flat: Sequence[Tensor], ys: Sequence[Tensor], kept: Sequence[Tensor],
    grads: Sequence[Tensor | None], wants: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    f, groups, biases = call.split(flat)
    want_f, want_groups, want_biases = call.split(wants)
    rest = iter(kept)
    before = [restore(call, group, x, rest) for group, x in zip(call.groups, groups, strict=True)]
    d_parts, sums = _ends_backward(call, biases, grads, rest)
    needs = [
        _needs(call, group, x, want, want_f) for group, x, want in zip(call.groups, groups, want_groups, strict=True)
    ]
    found = _aggregate_backward(call, before, d_parts, ys, needs)
    prepared = [h for h, _ in before]
    d_f, d_groups = prepare_backward(call, f, groups, prepared, found, (want_f, want_groups), sums)
    rows = chain(*(late.value().unbind() for late in sums))
    d_biases = [None if grad is None else next(rows) for grad in grads] if biases else []
    ends = zip(d_biases, biases, want_biases, strict=True)
    return call.join(d_f, d_groups, [d.to(bias.dtype) if want and d is not None else None for d, bias, want in ends])


def shapes(call: HalfCall, flat: Sequence[Tensor]) -> list[Tensor]:
    """Results and kept tensors as the operator returns them, but empty; kernels keep all in one."""
    found, kept = _sizes(call, flat)
    if call.keep is not None:
        found += kept if call.backend == "torch" else [((places_of(call, flat)[1],), torch.uint8)]
    return [flat[0].new_empty(shape, dtype=dtype) for shape, dtype in found]


def places_of(call: HalfCall, flat: Sequence[Tensor]) -> tuple[list[Place], int]:
    """Where kept tensors are if they are in one, and how many bytes it has."""
    found, size = [], 0
    for shape, dtype in _sizes(call, flat)[1]:
        stride = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
        found.append(Place(0, size, tuple(shape), stride, dtype))
        size += aligned(math.prod(shape) * dtype.itemsize)
    return found, size


def count_kept(call: HalfCall, flat: Sequence[Tensor]) -> int:
    """How many tensors are kept."""
    return len(_sizes(call, flat)[1])


def _sizes(call: HalfCall, flat: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
    """Shapes and dtypes of the results, and of what is kept."""
    f, groups, _ = call.split(flat)
    batch, parts = call.batch or 1, []
    kept: list[Any] = []
    for group, x in zip(call.groups, groups, strict=True):
        _, m, n = x.weight.shape
        count = group.factors if call.towards == "factor" else group.variables
        parts.append((batch, count, m))
        kept += [((*x.a.shape[:-1], n), call.dtype)] if x.factor_weight is not None else []
        kept += [((*f.shape[:-1], n), call.dtype)] if x.variable_weight is not None else []
        small = small_parts(call, group, x)
        if call.packed and group.has(BY_POSITION):
            small = [((sum(dtype.itemsize * math.prod(size) for size, dtype in small),), torch.uint8)]
        kept += small
        if call.winners is not None:
            kept.append(((count, batch, m) if call.backend == "torch" else parts[-1], call.winners))
    ends = parts[: call.results]
    kept += [(end, torch.uint8) for end in ends if call.ends != "none"]
    return [(end if call.batch is not None else end[1:], call.dtype) for end in ends], kept


# ---- the edges -----------------------------------------------------------------------------------------------------


def _edge_call(call: HalfCall, group: GroupCall) -> EdgeCall:
    return EdgeCall(group.edges, call.towards, group.has(RELU), call.aggregation, group.types, call.batch)


def _phi(group: GroupCall, h: Prepared) -> Tensor | None:
    """φ for the edges; by position, W is Q already."""
    return None if group.has(BY_POSITION) else h.phi


def _aggregate(call: HalfCall, prepared: Sequence[Prepared]) -> list[tuple[Tensor, Tensor | None]]:
    """The aggregate (B, D, m) of each group, and the winning edges if they are kept."""
    pairs = list(zip(call.groups, prepared, strict=True))
    if call.backend == "triton":
        results = by_triton.forward([_operands(call, group, h) for group, h in pairs], call.winners)
        return [(out, None if call.winners is None else place) for out, place in results]
    found = []
    for group, h in pairs:
        values, arg = by_torch.forward(_inputs(call, group, h), call.winners is not None)
        found.append((values.transpose(0, 1), arg))
    return found


def _operands(call: HalfCall, group: GroupCall, h: Prepared) -> by_triton.Group:
    return by_triton.Group(h.a, h.b, _phi(group, h), h.weight, _edge_call(call, group))


def _inputs(call: HalfCall, group: GroupCall, h: Prepared) -> EdgeInputs:
    batch = call.batch or 1
    b = None if h.b is None else by_torch.node_first(h.b, batch)
    return EdgeInputs(by_torch.node_first(h.a, batch), b, _phi(group, h), h.weight, _edge_call(call, group))


def _aggregate_backward(
    call: HalfCall, before: Sequence[tuple[Prepared, Tensor | None]], d_parts: Sequence[Tensor | None],
    ys: Sequence[Tensor], needs: Sequence[Sequence[bool]],
) -> list[EdgeGradients | None]:  # fmt: skip
    """The gradients of each group; None without one at its aggregate."""
    found: list[EdgeGradients | None] = [None] * len(before)
    live = {k: grad for k, grad in enumerate(d_parts) if grad is not None}
    if call.backend == "triton":
        groups = [_operands(call, call.groups[k], before[k][0]) for k in live]
        places = [before[k][1] for k in live]
        none = torch.empty(0, dtype=torch.uint8, device=before[0][0].a.device)
        upstream = [(grad, none if arg is None else arg) for grad, arg in zip(live.values(), places, strict=True)]
        shares = [call.groups[k].has(BY_POSITION) for k in live]
        some = by_triton.backward(groups, upstream, [needs[k] for k in live], shares)
        for k, grads in zip(live, some, strict=True):
            found[k] = EdgeGradients._make(grads)
        return found
    for k, grad in live.items():
        (h, arg), group = before[k], call.groups[k]
        out = None
        if call.aggregation.kind == "softmax":
            out = (ys[k] if ys[k].dim() == 3 else ys[k].unsqueeze(0)).transpose(0, 1)
        mine = _inputs(call, group, h)
        d_a, d_b, d_phi, d_weight = by_torch.backward(grad.transpose(0, 1), mine, arg, out, needs[k])
        if group.has(BY_POSITION) and d_weight is not None:
            d_weight = d_weight.unsqueeze(0)  # one share
        d_b = None if h.b is None else _as_given(d_b, h.b)
        found[k] = EdgeGradients(_as_given(d_a, h.a), d_b, d_phi, d_weight)
    return found


def _as_given(grad: Tensor | None, x: Tensor) -> Tensor | None:
    """A gradient (nodes, B, n) in the shape of x, which has B or is shared by all samples."""
    return None if grad is None else grad.sum(1) if x.dim() == 2 else grad.transpose(0, 1)


def _needs(call: HalfCall, group: GroupCall, x: Operands, want: Operands, want_f: bool) -> tuple[bool, ...]:
    """Whether the gradients at a, b, φ and W are needed."""
    in_net = wants_net(x, want)
    need_a = bool(want.a or want.factor_weight or want.bias)
    need_b = bool(want.b or want.variable_weight or (want_f and x.variable_weight is not None))
    if group.has(BY_POSITION):
        return need_a, need_b, False, bool(want.weight) or in_net
    return need_a, need_b, in_net if x.net else bool(want.t), bool(want.weight)


# ---- after the edges -----------------------------------------------------------------------------------------------


def _fused(call: HalfCall) -> bool:
    return call.backend == "triton" and (call.ends == "each" or len(call.groups) <= PARTS)


def _as_called(call: HalfCall, y: Tensor) -> Tensor:
    return (y.squeeze(0) if call.batch is None else y).contiguous()


def _ends_backward(
    call: HalfCall, biases: Sequence[Tensor], grads: Sequence[Tensor | None], kept: Any
) -> tuple[list[Tensor | None], list[LateSum]]:
    """Gradients at the aggregates (B, D, m), and sums (results, m): those at the biases of results with a gradient."""
    whole = [None if g is None else g.unsqueeze(0) if call.batch is None else g for g in grads]
    if call.ends == "none":
        return whole, []
    parts = len(call.groups) if call.ends == "all" else 1
    whiches = [next(kept) for _ in whole]
    live = {k: grad for k, grad in enumerate(whole) if grad is not None}
    found, sums = combine.backward(
        list(live.values()), [whiches[k] for k in live], parts, bool(biases), call.aggregation.kind == "max",
        _fused(call),
    )  # fmt: skip
    d_parts: list[Tensor | None] = [None] * (parts * len(whole))
    for k, some in zip(live, found, strict=True):
        d_parts[k * parts : (k + 1) * parts] = some
    return d_parts, sums
