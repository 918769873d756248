r"""A half-layer in one pass each way, without autograd: projections, Q, aggregation over all groups, bias and ReLU.

.. math:: y = \sigma\Big(\operatorname{agg}_{e} Q(t_e)\, \sigma(\Theta_g\, g_c + \beta + \Theta_f f_i) + \beta'\Big)

What the caller has computed is given as it is: the two parts of M instead of features and Θ, or φ instead of t and a
network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends import combine, edge_terms, linear_passes
from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.half_call import BY_POSITION, FUSED, NET_IN_ONE, PER_EDGE, RELU, GroupCall, HalfCall, Operands
from fgnn.nn.backends.torch import aggregate as by_torch
from fgnn.nn.backends.torch.chunks import EdgeInputs
from fgnn.nn.backends.triton import aggregate as by_triton
from fgnn.nn.backends.triton.combine import PARTS
from fgnn.nn.backends.triton.linear import Layers


class _Group(NamedTuple):
    """What is computed of a group before its edges are aggregated."""

    a: Tensor
    b: Tensor | None
    phi: Tensor | None
    weight: Tensor  # in the dtype of the call; by position, Q
    hidden: list[Tensor]


def forward(call: HalfCall, flat: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The results, contiguous, and what :func:`backward` reads besides."""
    if torch.is_autocast_enabled(flat[0].device.type):
        with torch.autocast(flat[0].device.type, enabled=False):  # all operands are rounded here
            return forward(call, flat)
    f, groups, biases = call.split(flat)
    parts: list[Tensor] = []
    kept: list[Tensor] = []
    for group, x in zip(call.groups, groups, strict=True):
        h = _before(call, group, f, x)
        part, arg = _aggregate(call, group, h)
        parts.append(part)
        kept += _kept(call, group, x, h, arg)
    if call.ends == "none":
        return [_as_called(call, part) for part in parts], kept
    ys = []
    for k, some in enumerate([parts] if call.ends == "all" else [[part] for part in parts]):
        bias = biases[k] if biases else None
        y, which = combine.forward(
            some, bias, call.empty[k], call.aggregation.kind == "max", call.relu, _fused(call, len(some))
        )
        ys.append(_as_called(call, y))
        kept.append(which.contiguous())
    return ys, kept


def backward(
    call: HalfCall, flat: Sequence[Tensor], ys: Sequence[Tensor], kept: Sequence[Tensor],
    grads: Sequence[Tensor | None], wants: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients at the operands, None for those not wanted; ``ys`` are read for a softmax only."""
    if torch.is_autocast_enabled(flat[0].device.type):
        with torch.autocast(flat[0].device.type, enabled=False):  # it would change the precision of sums
            return backward(call, flat, ys, kept, grads, wants)
    f, groups, biases = call.split(flat)
    want_f, want_groups, want_biases = call.split(wants)
    rest = iter(kept)
    before = [_restore(call, group, x, rest) for group, x in zip(call.groups, groups, strict=True)]
    d_parts, d_biases = _ends_backward(call, biases, grads, rest)
    d_f: Tensor | None = None
    found = []
    for k, (group, x, wanted, d_part) in enumerate(zip(call.groups, groups, want_groups, d_parts, strict=True)):
        h, arg = before[k]
        if d_part is None:
            found.append(Operands._make([*[None] * 7, (None,) * len(x.net)]))
            continue
        y = ys[k] if call.aggregation.kind == "softmax" else None
        d_group, d_f_too = _group_backward(call, group, (f, x, h), (d_part, arg, y), (want_f, wanted))
        found.append(d_group)
        d_f = d_f_too if d_f is None else d_f if d_f_too is None else d_f.add_(d_f_too)
    d_biases = [d if want else None for d, want in zip(d_biases, want_biases, strict=True)]
    return call.join(d_f, found, d_biases)


def shapes(call: HalfCall, flat: Sequence[Tensor]) -> list[Tensor]:
    """Results and kept tensors as :func:`forward` returns them, but empty."""
    f, groups, _ = call.split(flat)
    like, batch, parts = flat[0], call.batch or 1, []
    kept: list[Any] = []
    for group, x in zip(call.groups, groups, strict=True):
        _, m, n = x.weight.shape
        count = group.factors if call.towards == "factor" else group.variables
        parts.append((batch, count, m))
        kept += [((*x.a.shape[:-1], n), call.dtype)] if x.factor_weight is not None else []
        kept += [((*f.shape[:-1], n), call.dtype)] if x.variable_weight is not None else []
        small = _small(call, group, x)
        if call.packed and group.has(BY_POSITION):
            small = [((sum(dtype.itemsize * math.prod(size) for size, dtype in small),), torch.uint8)]
        kept += small
        if call.winners is not None:
            kept.append(((count, batch, m) if call.backend == "torch" else parts[-1], call.winners))
    ends = parts[:1] if call.ends == "all" else parts
    found = [(end if call.batch is not None else end[1:], call.dtype) for end in ends]
    if call.keep is not None:
        found += kept
        found += [(end, torch.uint8) for end in ends if call.ends != "none"]
    return [like.new_empty(shape, dtype=dtype) for shape, dtype in found]


# ---- before the edges ----------------------------------------------------------------------------------------------


def _before(call: HalfCall, group: GroupCall, f: Tensor | None, x: Operands) -> _Group:
    a, b = _given_parts(call, group, x)
    if x.factor_weight is not None or x.variable_weight is not None:
        parts = linear_passes.forward(_layers(f, x), False, call.dtype, group.has(FUSED))
        a = parts[0] if x.factor_weight is not None else a
        b = parts[-1] if x.variable_weight is not None else b
    assert a is not None
    if not x.net:
        return _Group(a, b, None if x.t is None else x.t.to(call.dtype), x.weight.to(call.dtype), [])
    phi, hidden = edge_terms.coefficients(x.t, x.net, group.terms, _phi_dtype(call, group, x))
    weight = edge_terms.matrices(phi, x.weight) if group.has(BY_POSITION) else x.weight
    return _Group(a, b, phi, weight.to(call.dtype), hidden)


def _phi_dtype(call: HalfCall, group: GroupCall, x: Operands) -> torch.dtype:
    """Positions are few: rounding W to half precision would take longer than products in its own."""
    dtype: torch.dtype = x.weight.dtype if group.has(BY_POSITION) else call.dtype
    return dtype


def _given_parts(call: HalfCall, group: GroupCall, x: Operands) -> tuple[Tensor | None, Tensor | None]:
    """The parts of M that are no products: given, or the same for all nodes."""
    a = b = None
    if x.factor_weight is None:
        if x.a is not None:
            a = x.a.to(call.dtype)
        else:
            row = x.weight.new_zeros(x.weight.shape[2]) if x.bias is None else x.bias
            a = row.to(call.dtype).expand(group.factors, -1)
    if x.variable_weight is None and not group.has(PER_EDGE):
        width = x.weight.shape[2]
        b = x.weight.new_zeros((group.variables, width), dtype=call.dtype) if x.b is None else x.b.to(call.dtype)
    return a, b


def _layers(f: Tensor | None, x: Operands) -> Layers:
    if x.factor_weight is None:
        return Layers(f, x.variable_weight)  # type: ignore[arg-type]
    if x.variable_weight is None:
        return Layers(x.a, x.factor_weight, x.bias)
    return Layers(x.a, x.factor_weight, x.bias, f, x.variable_weight)


def _rounds(call: HalfCall, group: GroupCall, x: Operands) -> bool:
    """Whether W as used is another tensor than W as given."""
    return group.has(BY_POSITION) or x.weight.dtype != call.dtype


def _kept(call: HalfCall, group: GroupCall, x: Operands, h: _Group, arg: Tensor | None) -> list[Tensor]:
    kept = [h.a] if x.factor_weight is not None else []
    kept += [h.b] if x.variable_weight is not None and h.b is not None else []
    small = [h.phi, *h.hidden] if x.net and h.phi is not None else []
    small += [h.weight] if _rounds(call, group, x) else []
    if call.packed and group.has(BY_POSITION):
        small = [torch.cat([y.flatten().view(torch.uint8) for y in small])]
    kept += small
    return kept if arg is None else [*kept, arg]


def _restore(call: HalfCall, group: GroupCall, x: Operands, kept: Any) -> tuple[_Group, Tensor | None]:
    """What :func:`_kept` returned."""
    a, b = _given_parts(call, group, x)
    a = a if x.factor_weight is None else next(kept)
    b = b if x.variable_weight is None else next(kept)
    sizes = _small(call, group, x)
    if call.packed and group.has(BY_POSITION):
        pieces = next(kept).split([dtype.itemsize * math.prod(size) for size, dtype in sizes])
        small = [piece.view(dtype).view(size) for piece, (size, dtype) in zip(pieces, sizes, strict=True)]
    else:
        small = [next(kept) for _ in sizes]
    weight = small.pop() if _rounds(call, group, x) else x.weight
    phi = small[0] if x.net else None if x.t is None else x.t.to(call.dtype)
    assert a is not None
    return _Group(a, b, phi, weight, small[1:]), None if call.winners is None else next(kept)


def _small(call: HalfCall, group: GroupCall, x: Operands) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of what is kept of Q: φ, hidden layers and W, as far as they are no operands."""
    sizes: list[tuple[int, ...]] = []
    if x.net:
        rows, hidden = x.t.shape[:-1], () if group.has(NET_IN_ONE) else x.net[:-2:2]
        sizes = [(*rows, x.weight.shape[0]), *((*rows, theta.shape[0]) for theta in hidden)]
    found = [(size, _phi_dtype(call, group, x)) for size in sizes]
    if _rounds(call, group, x):
        last = (x.t.shape[0], *x.weight.shape[1:]) if group.has(BY_POSITION) else tuple(x.weight.shape)
        found.append((last, call.dtype))
    return found


# ---- the edges -----------------------------------------------------------------------------------------------------


def _edge_call(call: HalfCall, group: GroupCall) -> EdgeCall:
    return EdgeCall(group.edges, call.towards, group.has(RELU), call.aggregation, group.types, call.batch)


def _phi(group: GroupCall, h: _Group) -> Tensor | None:
    """φ for the edges; by position, W is Q already."""
    return None if group.has(BY_POSITION) else h.phi


def _aggregate(call: HalfCall, group: GroupCall, h: _Group) -> tuple[Tensor, Tensor | None]:
    """The aggregate (B, D, m), and the winning edges if they are kept."""
    if call.backend == "triton":
        out, place = by_triton.forward(h.a, h.b, _phi(group, h), h.weight, _edge_call(call, group))
        return out, None if call.winners is None else place.to(call.winners)
    values, arg = by_torch.forward(_inputs(call, group, h), call.winners is not None)
    return values.transpose(0, 1), arg


def _inputs(call: HalfCall, group: GroupCall, h: _Group) -> EdgeInputs:
    batch = call.batch or 1
    b = None if h.b is None else by_torch.node_first(h.b, batch)
    return EdgeInputs(by_torch.node_first(h.a, batch), b, _phi(group, h), h.weight, _edge_call(call, group))


def _aggregate_backward(
    call: HalfCall, group: GroupCall, h: _Group, upstream: tuple[Tensor, Tensor | None, Tensor | None],
    wants: Sequence[bool],
) -> Sequence[Tensor | None]:  # fmt: skip
    """Gradients at a, b, φ and W."""
    grad, arg, y = upstream
    if call.backend == "triton":
        place = grad.new_empty(0, dtype=torch.uint8) if arg is None else arg
        inputs = h.a, h.b, _phi(group, h), h.weight
        wide = h.phi.dtype if h.phi is not None and group.has(BY_POSITION) else None
        return by_triton.backward(grad, place, inputs, _edge_call(call, group), wants, wide)
    out = None if y is None else (y if y.dim() == 3 else y.unsqueeze(0)).transpose(0, 1)
    d_a, d_b, d_phi, d_weight = by_torch.backward(grad.transpose(0, 1), _inputs(call, group, h), arg, out, wants)
    return _as_given(d_a, h.a), None if h.b is None else _as_given(d_b, h.b), d_phi, d_weight


def _as_given(grad: Tensor | None, x: Tensor) -> Tensor | None:
    """A gradient (nodes, B, n) in the shape of x, which has B or is shared by all samples."""
    return None if grad is None else grad.sum(1) if x.dim() == 2 else grad.transpose(0, 1)


def _group_backward(
    call: HalfCall, group: GroupCall, given: tuple[Tensor | None, Operands, _Group],
    upstream: tuple[Tensor, Tensor | None, Tensor | None], wants: tuple[bool, Operands],
) -> tuple[Operands, Tensor | None]:  # fmt: skip
    """Gradients at the operands of a group, and at f."""
    (f, x, h), (want_f, want) = given, wants
    in_net = any(want.net) or (bool(x.net) and bool(want.t))
    need_a = bool(want.a or want.factor_weight or want.bias)
    need_b = bool(want.b or want.variable_weight or (want_f and x.variable_weight is not None))
    need_phi, need_weight = (in_net if x.net else bool(want.t)), bool(want.weight)
    if group.has(BY_POSITION):
        need_phi, need_weight = False, need_weight or in_net
    needs = (need_a, need_b, need_phi, need_weight)
    d_a, d_b, d_phi, d_weight = _aggregate_backward(call, group, h, upstream, needs)
    d_net: list[Tensor | None] = [None] * len(x.net)
    if group.has(BY_POSITION) and d_weight is not None:
        assert h.phi is not None
        d_phi, d_weight = edge_terms.matrices_backward(d_weight, h.phi, x.weight)
    d_t = d_phi
    if x.net and in_net and d_phi is not None:
        assert h.phi is not None
        d_phi = d_phi.to(h.phi.dtype)
        d_t, d_net = edge_terms.backward(d_phi, h.phi, h.hidden, x.t, x.net, group.terms, bool(want.t))
    d_x, d_theta, d_bias, d_f, d_theta_f = _project_backward(call, group, f, x, (d_a, d_b), (want_f, want))
    found = Operands(d_x, d_theta, d_bias, d_b if x.variable_weight is None else None, d_theta_f, d_t, d_weight, ())
    checked: list[Any] = [
        None if g is None or not w else g if g.dtype == t.dtype else g.to(t.dtype)
        for g, t, w in zip(found[:7], x[:7], want[:7], strict=True)
    ]
    net = tuple(g if w else None for g, w in zip(d_net, want.net, strict=True))
    return Operands._make([*checked, net]), d_f


def _project_backward(
    call: HalfCall, group: GroupCall, f: Tensor | None, x: Operands, upstream: tuple[Tensor | None, Tensor | None],
    wants: tuple[bool, Operands],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients at g (or a), Θ_g, β, f and Θ_f."""
    (d_a, d_b), (want_f, want) = upstream, wants
    first, second = x.factor_weight is not None, x.variable_weight is not None
    found: list[Tensor | None] = [d_a, None, None, None, None]
    if not first and x.bias is not None and d_a is not None:
        found[2] = d_a.flatten(0, -2).sum(0)
    asked = [bool(want.a), bool(want.factor_weight), bool(want.bias), want_f, bool(want.variable_weight)]
    some = d_a if first else d_b
    if not (first or second) or (some is None and (d_b is None or not second)):
        return found
    fused = group.has(FUSED)
    if first and second:
        grads = [d_a, d_b]
        for k, node in enumerate((x.a, f)):
            if grads[k] is None and node is not None:
                grads[k] = node.new_zeros((*node.shape[:-1], x.weight.shape[2]), dtype=call.dtype)
        return linear_passes.backward(_layers(f, x), None, grads, call.dtype, fused, asked)  # type: ignore[arg-type]
    alone = asked[:3] if first else [asked[3], asked[4], False]
    assert some is not None
    d_x, d_theta, d_bias, _, _ = linear_passes.backward(
        _layers(f, x), None, [some], call.dtype, fused, [*alone, False, False]
    )
    return [d_x, d_theta, d_bias, None, None] if first else [*found[:3], d_x, d_theta]


# ---- after the edges -----------------------------------------------------------------------------------------------


def _fused(call: HalfCall, parts: int) -> bool:
    return call.backend == "triton" and parts <= PARTS


def _as_called(call: HalfCall, y: Tensor) -> Tensor:
    return (y.squeeze(0) if call.batch is None else y).contiguous()


def _ends_backward(
    call: HalfCall, biases: Sequence[Tensor], grads: Sequence[Tensor | None], kept: Any
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients at the aggregates (B, D, m) and at the biases."""
    whole = [None if g is None else g.unsqueeze(0) if call.batch is None else g for g in grads]
    if call.ends == "none":
        return whole, []
    d_parts: list[Tensor | None] = []
    d_biases: list[Tensor | None] = []
    for k, grad in enumerate(whole):
        which = next(kept)
        parts = len(call.groups) if call.ends == "all" else 1
        if grad is None:
            d_parts += [None] * parts
            d_biases += [None] * bool(biases)
            continue
        some, d_bias = combine.backward(
            grad, which, parts, bool(biases), call.aggregation.kind == "max", _fused(call, parts)
        )
        d_parts += some
        d_biases += [d_bias.to(biases[k].dtype)] if biases else []
    return d_parts, d_biases
