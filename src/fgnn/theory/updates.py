"""One iteration of max-product as the weights of M and Q: eq. (to_z) towards factors, eq. (to_x) towards variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fgnn.theory.layout import FactorKind, VariableLayout, read
from fgnn.theory.relu import CLOSED, NEVER, ZERO, Number, ReluNetwork, Wire, add, carry, gate, maxima

Variant = Literal["paper", "standard"]


@dataclass(frozen=True, eq=False)
class Update:
    """The weights of one direction for one kind of factor."""

    layers: list[tuple[Tensor, Tensor]]  # of M: weight (out, in) and bias; a ReLU follows each
    matrices: Tensor  # of Q, one for each edge type; shape: (T, m, n)


def towards_factor(kind: FactorKind, layout: VariableLayout, variant: Variant) -> Update:
    r"""Eq. (to_z) without its sum: M computes the max-marginals and Q writes them into the slot of the position.

    .. math:: \max_{x_i}[\theta_{ic}(x_i, z) + b_i(x_i)] = v_z / |s(c)| + \max_{x_i \in S_i^z} b_i(x_i)

    M sees neither the position nor the slot, so it takes the maximum over every side that occurs. For the standard
    variant the factor's own message is left out of :math:`b_i`: M computes the belief without each slot in turn, and Q
    selects the one without the edge's slot. (Subtracting the message from the belief is the same for finite numbers,
    but :math:`-\infty` cannot be subtracted.)
    """
    width = kind.width(layout)
    net = ReluNetwork(width + layout.width)
    f = net.inputs[width:]
    terms = [Number(wire) for wire in net.inputs[: len(kind.terms)]]
    left_out = sorted({slot for _, slot in kind.edge_types}) if variant == "standard" else [None]
    states = sorted({x for side in kind.all_sides for x in side})
    belief = {(d, x): layout.belief(f, x, but=d) for d in left_out for x in states}
    if layout.bans:
        belief = {key: gate(net, number) for key, number in belief.items()}
        terms = [carry(net, number) for number in terms]
        net.advance()
    wanted = [(d, side) for d in left_out for side in kind.all_sides]
    best, terms = maxima(net, [[belief[d, x] for x in side] for d, side in wanted], terms)
    stored = dict(zip(wanted, [_store(net, number, layout.bans) for number in best], strict=True))
    values = [net.carry(number.value) for number in terms]
    net.advance()

    def matrix(position: int, slot: int) -> Tensor:
        rows = [*values, *[ZERO] * (width - len(values))]
        for side in kind.sides[position]:
            at = kind.marginal(layout, position, side)
            rows[at : at + layout.parts] = stored[slot if variant == "standard" else None, side]
        return net.matrix(rows)[0]

    return Update(net.layers, torch.stack([matrix(a, d) for a, d in kind.edge_types]))


def towards_variable(kind: FactorKind, layout: VariableLayout, normalise: bool) -> Update:
    r"""Eq. (to_z)'s sum and eq. (to_x) without its sum: M computes the messages and Q writes one into the edge's slot.

    .. math:: m_{c \to i}(x_i) = \max_{z: x_i \in S_i^z}
              \Big[v_z + \sum_{i' \neq i} \max_{x_{i'} \in S_{i'}^z} b_{i'}(x_{i'})\Big]

    The sum over :math:`i'` is linear in the slots of :math:`g_c`; M takes it in its first layer, for every position,
    and Q selects the edge's own. With ``normalise``, the largest entry of every message is subtracted from it.
    """
    width = kind.width(layout)
    net = ReluNetwork(width + layout.width)
    g, f = net.inputs[:width], net.inputs[width:]
    keep = [Number(f[at]) for at in range(layout.states * (2 if layout.bans else 1))]
    best_of = [
        {side: read(g, kind.marginal(layout, a, side), layout.bans) for side in sides}
        for a, sides in enumerate(kind.sides)
    ]
    rows: list[list[Number]] = []
    for a, states in enumerate(kind.shape):
        sums = [
            add([Number(g[z]), *(best_of[b][side] for b, side in enumerate(term) if b != a)])
            for z, term in enumerate(kind.terms)
        ]
        if layout.bans:
            sums = [gate(net, number) for number in sums]
        rows += [[sums[z] for z, term in enumerate(kind.terms) if x in term[a]] for x in range(states)]
    if layout.bans:
        keep = [carry(net, number) for number in keep]
        net.advance()
    messages, keep = maxima(net, rows, keep)
    ends = [sum(kind.shape[: a + 1]) for a in range(kind.arity)]
    if normalise:
        by_position = [messages[end - k : end] for end, k in zip(ends, kind.shape, strict=True)]
        tops, kept = maxima(net, by_position, [*messages, *keep])
        messages, keep = kept[: len(messages)], kept[len(messages) :]
        messages = [
            _less(messages[end - k + x], top)
            for end, k, top in zip(ends, kind.shape, tops, strict=True)
            for x in range(k)
        ]
    stored = [_store(net, number, layout.bans) for number in messages]
    unaries = [net.carry(number.value) for number in keep]
    net.advance()

    def matrix(position: int, slot: int) -> Tensor:
        wires = [*unaries, *[ZERO] * (layout.width - len(unaries))]
        first = ends[position] - kind.shape[position]
        for x in range(kind.shape[position]):
            at = layout.message(slot, x)
            wires[at : at + layout.parts] = stored[first + x]
        return net.matrix(wires)[0]

    return Update(net.layers, torch.stack([matrix(a, d) for a, d in kind.edge_types]))


def _less(number: Number, top: Number) -> Number:
    """A message's entry less the largest one; where that is -inf the message has no finite entry to shift."""
    return number if number.never else Number(number.value - top.value, number.banned, number.allowed)


def _store(net: ReluNetwork, number: Number, bans: bool) -> Sequence[Wire]:
    """The non-negative parts of a number as units of the next layer."""
    if not bans:
        return [net.unit(number.value), net.unit(-number.value)]
    if number.never:
        # A unit that is always 1: Q has no bias, so the count must come from M.
        return [ZERO, ZERO, net.unit(NEVER.banned or ZERO)]
    if number.banned is None:
        return [net.unit(number.value), net.unit(-number.value), ZERO]
    shut = CLOSED * number.banned
    return [net.unit(number.value - shut), net.unit(-number.value - shut), net.unit(number.banned)]
