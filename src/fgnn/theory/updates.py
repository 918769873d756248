"""M and Q for one iteration of max-product: eq. (to_z) to factors, eq. (to_x) to variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from fgnn.nn import Message, TableMatrix
from fgnn.pgm import GraphicalModel
from fgnn.theory.layout import EDGE, FORBIDDEN, FactorKind, Key, VariableLayout, read, store
from fgnn.theory.parts import message_of, table_of
from fgnn.theory.relu import ZERO, ReluNetwork, Wire, maxima, total

Variant = Literal["paper", "standard"]


def check_network(model: GraphicalModel, iterations: int, variant: str) -> None:
    """Raise a `ValueError` unless this many iterations on this model can be compiled into layers."""
    if variant not in get_args(Variant):
        raise ValueError(f"Expected variant paper or standard (got {variant!r})")
    if iterations < 1:
        raise ValueError(f"Expected at least one iteration (got {iterations})")
    if not model.num_variables:
        raise ValueError("Expected a model with at least one variable (got none)")


def towards_factor(kind: FactorKind, layout: VariableLayout, variant: Variant) -> tuple[Message, TableMatrix]:
    r"""Eq. (to_z) without its sum: M computes the max-marginals and Q writes them into the slot of the position.

    .. math:: \max_{x_i}[\theta_{ic}(x_i, z) + b_i(x_i)] = v_z / |s(c)|
              + \max_{x_i \in S_i^z} [u_{ic}(x_i, z) + b_i(x_i)]

    :math:`v_z` is added once, in `towards_variable`, instead of its shares :math:`v_z / |s(c)|` at every position:
    they appear together in every message, since eq. (to_x) adds the share of i to the sum over the others.

    M sees neither the position nor the slot, so it takes the maximum over every side of the kind. The standard
    variant omits the factor's own message from :math:`b_i`: M computes the belief without each slot in turn, and Q
    selects the one without the edge's slot. (Subtracting the message from the belief is equivalent for finite
    numbers, but :math:`-\infty` cannot be subtracted.)
    """
    net = ReluNetwork(kind.width + layout.width)
    g, f = net.inputs[: kind.width], net.inputs[kind.width :]
    excluded = sorted({slot for _, slot in kind.edge_types}) if variant == "standard" else [None]
    keys = [(d, key) for d in excluded for key in kind.all_keys]
    beliefs = {(d, x): layout.belief(f, x, but=d) for d in excluded for x in range(layout.states)}

    def row(d: int | None, key: Key) -> list[Wire]:
        side, at = key
        return [beliefs[d, x] if at is None else beliefs[d, x] + g[kind.offsets[*at, x]] for x in side]

    marginals, numbers = _maxima(net, [row(d, key) for d, key in keys], g[: kind.numbers])
    stored = dict(zip(keys, [store(net, number) for number in marginals], strict=True))
    numbers = [net.carry(number) for number in numbers]
    net.advance()

    def matrix(position: int, slot: int) -> Tensor:
        rows = [*numbers, *[ZERO] * (kind.width - len(numbers))]
        for key in kind.keys[position]:
            at = kind.marginal(position, key)
            rows[at : at + 2] = stored[slot if variant == "standard" else None, key]
        return net.matrix(rows)[0]

    matrices = torch.stack([matrix(a, d) for a, d in kind.edge_types])
    return message_of(net.layers, kind.width, final_relu=True), table_of(matrices)


def towards_variable(kind: FactorKind, layout: VariableLayout, normalise: bool) -> tuple[Message, TableMatrix]:
    r"""Eq. (to_z)'s sum and eq. (to_x) without its sum: M computes the messages and Q writes one into the edge's slot.

    .. math:: m_{c \to i}(x_i) = \max_{z: x_i \in S_i^z} \Big[v_z + u_{ic}(x_i, z)
              + \sum_{i' \neq i} \max_{x_{i'} \in S_{i'}^z} [u_{i'c}(x_{i'}, z) + b_{i'}(x_{i'})]\Big]

    The sum over :math:`i'` is linear in the slots of :math:`g_c`; the first layer of M computes it for every position,
    and Q selects the edge's. With ``normalise``, the largest entry of each message is subtracted from it.
    """
    net = ReluNetwork(kind.width + layout.width)
    g, f = net.inputs[: kind.width], net.inputs[kind.width :]

    def row(position: int, state: int) -> list[Wire]:
        sums = []
        for z, term in enumerate(kind.terms):
            if state in term[position]:
                others = [kind.marginal(b, kind.key(b, z)) for b in range(kind.arity) if b != position]
                own = [g[kind.offsets[position, z, state]]] if position in kind.slopes[z] else []
                sums.append(total([g[z], *own, *(read(g, at) for at in others)]))
        return sums or [Wire({}, -FORBIDDEN)]

    rows = [row(a, x) for a, states in enumerate(kind.shape) for x in range(states)]
    messages, unaries = _maxima(net, rows, f[: layout.states])
    ends = [sum(kind.shape[: a + 1]) for a in range(kind.arity)]
    if normalise:
        messages, unaries = _normalised(net, messages, unaries, kind.shape)
    stored = [store(net, number) for number in messages]
    unaries = [net.carry(number) for number in unaries]
    net.advance()

    def matrix(position: int, slot: int) -> Tensor:
        wires = [*unaries, *[ZERO] * (layout.width - len(unaries))]
        first = ends[position] - kind.shape[position]
        for x in range(kind.shape[position]):
            at = layout.message(slot, x)
            wires[at : at + 2] = stored[first + x]
        return net.matrix(wires)[0]

    matrices = torch.stack([matrix(a, d) for a, d in kind.edge_types])
    return message_of(net.layers, kind.width, final_relu=True), table_of(matrices)


def _maxima(net: ReluNetwork, rows: Sequence[Sequence[Wire]], keep: Sequence[Wire]) -> tuple[list[Wire], list[Wire]]:
    """The maximum of every row of sums. A layer of its own computes the sums, so that comparisons see rounded ones."""
    if all(len(row) == 1 for row in rows):
        return [row[0] for row in rows], list(keep)
    rows, keep = [[net.carry(wire) for wire in row] for row in rows], [net.carry(wire) for wire in keep]
    net.advance()
    return maxima(net, rows, keep)


def _normalised(
    net: ReluNetwork, messages: Sequence[Wire], keep: Sequence[Wire], shape: Sequence[int]
) -> tuple[list[Wire], list[Wire]]:
    """Messages minus their largest entry, unless that is -inf; the messages to each position follow one another."""
    ends = [sum(shape[: a + 1]) for a in range(len(shape))]
    by_position = [messages[end - k : end] for end, k in zip(ends, shape, strict=True)]
    largest, carried = maxima(net, by_position, [*messages, *keep])
    # at least -EDGE: forbidden entries stay far below, and the next `store` saturates them again
    largest = [net.carry(top) + net.unit(-top - Wire({}, EDGE)) for top in largest]
    carried = [net.carry(wire) for wire in carried]
    net.advance()
    tops = [top for top, k in zip(largest, shape, strict=True) for _ in range(k)]
    shifted = [message - top for message, top in zip(carried, tops, strict=False)]
    return shifted, carried[len(messages) :]
