r"""What a half-layer computes of each group before its edges: the parts of M and the terms of Q, without autograd.

.. math:: a_c = \Theta_g\, g_c + \beta, \qquad b_i = \Theta_f f_i, \qquad \varphi(t_e)

All groups share a launch where one kernel serves them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends import edge_terms, linear_passes
from fgnn.nn.backends.half_call import BY_POSITION, FUSED, NET_IN_ONE, PER_EDGE, GroupCall, HalfCall, Operands
from fgnn.nn.backends.triton import positions
from fgnn.nn.backends.triton.late_sum import LateSum
from fgnn.nn.backends.triton.linear import Gradients, Linear
from fgnn.nn.backends.triton.positions import Positions


class Prepared(NamedTuple):
    """What is computed of a group before its edges are aggregated."""

    a: Tensor
    b: Tensor | None
    phi: Tensor | None
    weight: Tensor  # in the dtype of the call; by position, Q
    hidden: list[Tensor]


class EdgeGradients(NamedTuple):
    """Gradients at a, b, φ and W of a group; at Q by position, the shares of a sum (splits, A, m, n)."""

    a: Tensor | None
    b: Tensor | None
    phi: Tensor | None
    weight: Tensor | None


def prepare(call: HalfCall, f: Tensor | None, groups: Sequence[Operands]) -> list[Prepared]:
    """The parts of M and the terms of Q, of all groups."""
    parts = iter(_project(call, f, groups))
    found = []
    for group, x, (phi, weight, hidden) in zip(call.groups, groups, _terms(call, groups), strict=True):
        a, b = _given_parts(call, group, x)
        a = a if x.factor_weight is None else next(parts)
        b = b if x.variable_weight is None else next(parts)
        assert a is not None
        found.append(Prepared(a, b, phi, weight, hidden))
    return found


def prepare_backward(
    call: HalfCall, f: Tensor | None, groups: Sequence[Operands], prepared: Sequence[Prepared],
    upstream: Sequence[EdgeGradients | None], wants: tuple[bool, Sequence[Operands]], others: Sequence[LateSum] = (),
) -> tuple[Tensor | None, list[Operands]]:  # fmt: skip
    """Gradients at f and at the operands of each group, from those at what :func:`prepare` returned.

    Launches may take along some of the other sums.
    """
    want_f, wanted = wants
    products = iter(_project_backward(call, f, groups, upstream, wants))
    terms = _terms_backward(call, groups, prepared, upstream, wanted, others)
    d_f: Tensor | None = None
    found = []
    for x, up, want, (d_t, d_weight, d_net) in zip(groups, upstream, wanted, terms, strict=True):
        d_a = d_b = d_theta_g = d_theta_f = d_bias = more = None
        if up is not None:
            d_a, d_b = up.a, up.b if x.variable_weight is None else None
            if x.factor_weight is not None:
                d_a, d_theta_g, d_bias = next(products)
            elif x.bias is not None and d_a is not None:
                d_bias = d_a.flatten(0, -2).sum(0)
            if x.variable_weight is not None:
                more, d_theta_f, _ = next(products)
        if want_f and more is not None:
            d_f = more if d_f is None else d_f.add_(more)
        grads = (d_a, d_theta_g, d_bias, d_b, d_theta_f, d_t, d_weight)
        checked: list[Any] = [
            None if g is None or not w else g if g.dtype == t.dtype else g.to(t.dtype)
            for g, t, w in zip(grads, x[:7], want[:7], strict=True)
        ]
        net = tuple([g if w else None for g, w in zip(d_net, want.net, strict=True)])
        found.append(Operands._make([*checked, net]))
    return d_f, found


# ---- the parts of M ------------------------------------------------------------------------------------------------


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


def _layers(call: HalfCall, f: Tensor | None, groups: Sequence[Operands]) -> list[tuple[Linear, bool]]:
    """The products of all groups, that of a before that of b, and whether the kernel serves them."""
    found: list[tuple[Linear, bool]] = []
    for group, x in zip(call.groups, groups, strict=True):
        fused = group.has(FUSED)
        if x.factor_weight is not None:
            found.append((Linear(x.a, x.factor_weight, x.bias), fused))
        if x.variable_weight is not None and f is not None:
            found.append((Linear(f, x.variable_weight), fused))
    return found


def _project(call: HalfCall, f: Tensor | None, groups: Sequence[Operands]) -> list[Tensor]:
    layers = _layers(call, f, groups)
    ys: dict[int, Tensor] = {}
    for fused in (True, False):
        at = [k for k, (_, kernel) in enumerate(layers) if kernel == fused]
        if at:
            ys.update(zip(at, linear_passes.forward([layers[k][0] for k in at], False, call.dtype, fused), strict=True))
    return [ys[k] for k in range(len(layers))]


def _project_backward(
    call: HalfCall, f: Tensor | None, groups: Sequence[Operands], upstream: Sequence[EdgeGradients | None],
    wants: tuple[bool, Sequence[Operands]],
) -> list[Gradients]:  # fmt: skip
    """Gradients at the operands of the products of those groups that have gradients."""
    want_f, wanted = wants
    grads: list[Tensor | None] = []
    asked: list[tuple[bool, bool, bool]] = []
    live = []
    for x, up, want in zip(groups, upstream, wanted, strict=True):
        if x.factor_weight is not None:
            grads.append(None if up is None else up.a)
            asked.append((bool(want.a), bool(want.factor_weight), bool(want.bias)))
            live.append(up is not None)
        if x.variable_weight is not None:
            grads.append(None if up is None else up.b)
            asked.append((want_f, bool(want.variable_weight), False))
            live.append(up is not None)
    layers = _layers(call, f, groups)
    found: list[Gradients] = [(None, None, None)] * len(layers)
    for fused in (True, False):
        at = [k for k, (_, kernel) in enumerate(layers) if kernel == fused and grads[k] is not None]
        some = linear_passes.backward(
            [layers[k][0] for k in at], [None] * len(at), [g for k in at if (g := grads[k]) is not None], call.dtype,
            fused, [asked[k] for k in at],
        )  # fmt: skip
        for k, three in zip(at, some, strict=True):
            found[k] = three
    return [three for three, there in zip(found, live, strict=True) if there]


# ---- the terms of Q ------------------------------------------------------------------------------------------------


def _in_one(group: GroupCall, x: Operands) -> bool:
    """Whether one kernel computes φ and Q at the positions."""
    return group.has(BY_POSITION) and group.has(NET_IN_ONE) and positions.fits(x.t)


def _terms(call: HalfCall, groups: Sequence[Operands]) -> list[tuple[Tensor | None, Tensor, list[Tensor]]]:
    """φ, W as used, and the hidden layers of φ's network."""
    pairs = list(zip(call.groups, groups, strict=True))
    joint = iter(positions.forward([Positions(x.t, x.net, x.weight) for g, x in pairs if _in_one(g, x)], call.dtype))
    found: list[tuple[Tensor | None, Tensor, list[Tensor]]] = []
    for group, x in pairs:
        if _in_one(group, x):
            found.append((*next(joint), []))
            continue
        phi, weight = x.t, x.weight
        hidden: list[Tensor] = []
        if x.net:
            phi, hidden = edge_terms.coefficients(x.t, x.net, group.terms, _phi_dtype(call, group, x))
            weight = edge_terms.matrices(phi, weight) if group.has(BY_POSITION) else weight
        elif phi is not None:
            phi = phi.to(call.dtype)
        found.append((phi, weight.to(call.dtype), hidden))
    return found


def _terms_backward(
    call: HalfCall, groups: Sequence[Operands], prepared: Sequence[Prepared],
    upstream: Sequence[EdgeGradients | None], wants: Sequence[Operands], others: Sequence[LateSum],
) -> list[tuple[Tensor | None, Tensor | None, Sequence[Tensor | None]]]:  # fmt: skip
    """Gradients at t, at W and at the network of each group."""
    joint = {
        k: (Positions(x.t, x.net, x.weight), h.phi, up.weight)
        for k, (group, x, h, up) in enumerate(zip(call.groups, groups, prepared, upstream, strict=True))
        if up is not None and up.weight is not None and h.phi is not None and _in_one(group, x)
    }
    inputs, phis, grads = zip(*joint.values(), strict=True) if joint else ((), (), ())
    together = iter(positions.backward(inputs, phis, grads, others))
    found: list[tuple[Tensor | None, Tensor | None, Sequence[Tensor | None]]] = []
    for k, (group, x, h, up) in enumerate(zip(call.groups, groups, prepared, upstream, strict=True)):
        nothing: list[Tensor | None] = [None] * len(x.net)
        if up is None:
            found.append((None, None, nothing))
        elif k in joint:
            d_weight, *d_net = next(together)
            found.append((None, d_weight, d_net))
        else:
            found.append(_group_terms_backward(group, x, h, up, wants[k]))
    return found


def _group_terms_backward(
    group: GroupCall, x: Operands, h: Prepared, up: EdgeGradients, want: Operands
) -> tuple[Tensor | None, Tensor | None, Sequence[Tensor | None]]:
    d_phi, d_weight = up.phi, up.weight
    if group.has(BY_POSITION) and d_weight is not None:
        assert h.phi is not None
        d_phi, d_weight = edge_terms.matrices_backward(d_weight.sum(0), h.phi, x.weight)
    if not (wants_net(x, want) and d_phi is not None):
        return d_phi, d_weight, [None] * len(x.net)
    assert h.phi is not None
    d_t, d_net = edge_terms.backward(
        d_phi.to(h.phi.dtype), h.phi, h.hidden, x.t, x.net, group.terms, bool(want.t)
    )  # fmt: skip
    return d_t, d_weight, d_net


def wants_net(x: Operands, want: Operands) -> bool:
    """Whether some gradient goes through the network of φ."""
    return any(want.net) or (bool(x.net) and bool(want.t))


def _phi_dtype(call: HalfCall, group: GroupCall, x: Operands) -> torch.dtype:
    """Positions are few: rounding W to half precision would take longer than products in its own."""
    dtype: torch.dtype = x.weight.dtype if group.has(BY_POSITION) else call.dtype
    return dtype


# ---- what backward reads -------------------------------------------------------------------------------------------


def _rounds(call: HalfCall, group: GroupCall, x: Operands) -> bool:
    """Whether W as used is another tensor than W as given."""
    return group.has(BY_POSITION) or x.weight.dtype != call.dtype


def to_keep(call: HalfCall, group: GroupCall, x: Operands, h: Prepared, arg: Tensor | None) -> list[Tensor]:
    """What of a group is kept for backward; ``arg`` are the winning edges of a maximum."""
    kept = [h.a] if x.factor_weight is not None else []
    kept += [h.b] if x.variable_weight is not None and h.b is not None else []
    small = [h.phi, *h.hidden] if x.net and h.phi is not None else []
    small += [h.weight] if _rounds(call, group, x) else []
    if call.packed and group.has(BY_POSITION):
        small = [torch.cat([y.flatten().view(torch.uint8) for y in small])]
    kept += small
    return kept if arg is None else [*kept, arg]


def restore(call: HalfCall, group: GroupCall, x: Operands, kept: Any) -> tuple[Prepared, Tensor | None]:
    """What :func:`to_keep` returned."""
    a, b = _given_parts(call, group, x)
    a = a if x.factor_weight is None else next(kept)
    b = b if x.variable_weight is None else next(kept)
    sizes = small_parts(call, group, x)
    if call.packed and group.has(BY_POSITION):
        pieces = next(kept).split([dtype.itemsize * math.prod(size) for size, dtype in sizes])
        small = [piece.view(dtype).view(size) for piece, (size, dtype) in zip(pieces, sizes, strict=True)]
    else:
        small = [next(kept) for _ in sizes]
    weight = small.pop() if _rounds(call, group, x) else x.weight
    phi = small[0] if x.net else None if x.t is None else x.t.to(call.dtype)
    assert a is not None
    return Prepared(a, b, phi, weight, small[1:]), None if call.winners is None else next(kept)


def small_parts(call: HalfCall, group: GroupCall, x: Operands) -> list[tuple[tuple[int, ...], torch.dtype]]:
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
