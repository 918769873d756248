"""M and Q for one iteration of max-product: eq. (to_z) to factors, eq. (to_x) to variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fgnn.nn import Message, TableMatrix
from fgnn.theory.layout import FactorKind, VariableLayout, read
from fgnn.theory.parts import message_of, table_of
from fgnn.theory.relu import CLOSED, MINUS_INF, ZERO, Number, ReluNetwork, Wire, add, carry, gate, maxima

Variant = Literal["paper", "standard"]


def towards_factor(kind: FactorKind, layout: VariableLayout, variant: Variant) -> tuple[Message, TableMatrix]:
    r"""Eq. (to_z) without its sum: M computes the max-marginals and Q writes them into the slot of the position.

    .. math:: \max_{x_i}[\theta_{ic}(x_i, z) + b_i(x_i)] = v_z / |s(c)| + \max_{x_i \in S_i^z} b_i(x_i)

    M sees neither the position nor the slot, so it takes the maximum over every side of the kind. The standard
    variant omits the factor's own message from :math:`b_i`: M computes the belief without each slot in turn, and Q
    selects the one without the edge's slot. (Subtracting the message from the belief is equivalent for finite
    numbers, but :math:`-\infty` cannot be subtracted.)
    """
    width = kind.width(layout)
    net = ReluNetwork(width + layout.width)
    f = net.inputs[width:]
    terms = [Number(wire) for wire in net.inputs[: len(kind.terms)]]
    excluded = sorted({slot for _, slot in kind.edge_types}) if variant == "standard" else [None]
    states = sorted({x for side in kind.all_sides for x in side})
    belief = {(d, x): layout.belief(f, x, but=d) for d in excluded for x in states}
    if layout.forbids:
        belief = {key: gate(net, number) for key, number in belief.items()}
        terms = [carry(net, number) for number in terms]
        net.advance()
    keys = [(d, side) for d in excluded for side in kind.all_sides]
    marginals, terms = maxima(net, [[belief[d, x] for x in side] for d, side in keys], terms)
    stored = dict(zip(keys, [_store(net, number, layout.forbids) for number in marginals], strict=True))
    values = [net.carry(number.value) for number in terms]
    net.advance()

    def matrix(position: int, slot: int) -> Tensor:
        rows = [*values, *[ZERO] * (width - len(values))]
        for side in kind.sides[position]:
            at = kind.marginal(layout, position, side)
            rows[at : at + layout.parts] = stored[slot if variant == "standard" else None, side]
        return net.matrix(rows)[0]

    matrices = torch.stack([matrix(a, d) for a, d in kind.edge_types])
    return message_of(net.layers, width, final_relu=True), table_of(matrices)


def towards_variable(kind: FactorKind, layout: VariableLayout, normalise: bool) -> tuple[Message, TableMatrix]:
    r"""Eq. (to_z)'s sum and eq. (to_x) without its sum: M computes the messages and Q writes one into the edge's slot.

    .. math:: m_{c \to i}(x_i) = \max_{z: x_i \in S_i^z}
              \Big[v_z + \sum_{i' \neq i} \max_{x_{i'} \in S_{i'}^z} b_{i'}(x_{i'})\Big]

    The sum over :math:`i'` is linear in the slots of :math:`g_c`; the first layer of M computes it for every position,
    and Q selects the edge's. With ``normalise``, the largest entry of each message is subtracted from it.
    """
    width = kind.width(layout)
    net = ReluNetwork(width + layout.width)
    g, f = net.inputs[:width], net.inputs[width:]
    keep = [Number(f[at]) for at in range(layout.unaries)]
    marginals = [
        {side: read(g, kind.marginal(layout, a, side), layout.forbids) for side in sides}
        for a, sides in enumerate(kind.sides)
    ]
    rows: list[list[Number]] = []
    for a, states in enumerate(kind.shape):
        sums = [
            add([Number(g[z]), *(marginals[b][side] for b, side in enumerate(term) if b != a)])
            for z, term in enumerate(kind.terms)
        ]
        if layout.forbids:
            sums = [gate(net, number) for number in sums]
        rows += [[sums[z] for z, term in enumerate(kind.terms) if x in term[a]] for x in range(states)]
    if layout.forbids:
        keep = [carry(net, number) for number in keep]
        net.advance()
    messages, keep = maxima(net, rows, keep)
    ends = [sum(kind.shape[: a + 1]) for a in range(kind.arity)]
    if normalise:
        by_position = [messages[end - k : end] for end, k in zip(ends, kind.shape, strict=True)]
        largest, carried = maxima(net, by_position, [*messages, *keep])
        messages, keep = carried[: len(messages)], carried[len(messages) :]
        messages = [
            _subtract(messages[end - k + x], top)
            for end, k, top in zip(ends, kind.shape, largest, strict=True)
            for x in range(k)
        ]
    stored = [_store(net, number, layout.forbids) for number in messages]
    unaries = [net.carry(number.value) for number in keep]
    net.advance()

    def matrix(position: int, slot: int) -> Tensor:
        wires = [*unaries, *[ZERO] * (layout.width - len(unaries))]
        first = ends[position] - kind.shape[position]
        for x in range(kind.shape[position]):
            at = layout.message(slot, x)
            wires[at : at + layout.parts] = stored[first + x]
        return net.matrix(wires)[0]

    matrices = torch.stack([matrix(a, d) for a, d in kind.edge_types])
    return message_of(net.layers, width, final_relu=True), table_of(matrices)


def _subtract(number: Number, top: Number) -> Number:
    """A message entry minus the largest one; if that is -inf, the message has no finite entry to shift."""
    return number if number.is_minus_inf else Number(number.value - top.value, number.forbidden, number.allowed)


def _store(net: ReluNetwork, number: Number, forbids: bool) -> Sequence[Wire]:
    """The non-negative parts of a number as units of the next layer."""
    if not forbids:
        return [net.unit(number.value), net.unit(-number.value)]
    if number.is_minus_inf:
        # A unit that is always 1: Q has no bias, so M must provide the count.
        return [ZERO, ZERO, net.unit(MINUS_INF.forbidden or ZERO)]
    if number.forbidden is None:
        return [net.unit(number.value), net.unit(-number.value), ZERO]
    shut = CLOSED * number.forbidden
    return [net.unit(number.value - shut), net.unit(-number.value - shut), net.unit(number.forbidden)]
