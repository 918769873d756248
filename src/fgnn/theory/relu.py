"""Exact ReLU networks, wired unit by unit: affine functions, maxima, and numbers that may be -inf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Stands for +infinity inside a gate: larger than any value, yet a sum of many stays finite in double precision.
# It only ever multiplies a count that is exactly 0, or pushes a unit below 0, so no rounding comes from it.
CLOSED = 1e100


@dataclass(frozen=True, eq=False)
class Wire:
    """An affine function of the units of one layer; ``positive`` promises that it is never below 0."""

    parts: Mapping[int, float]
    constant: float = 0.0
    positive: bool = False

    def __add__(self, other: Wire) -> Wire:
        return total([self, other])

    def __sub__(self, other: Wire) -> Wire:
        return total([self, -1.0 * other])

    def __neg__(self) -> Wire:
        return -1.0 * self

    def __rmul__(self, factor: float) -> Wire:
        parts = {unit: factor * weight for unit, weight in self.parts.items()} if factor else {}
        return Wire(parts, factor * self.constant, positive=self.positive and factor >= 0)


ZERO = Wire({}, 0.0, positive=True)
ONE = Wire({}, 1.0, positive=True)


def total(wires: Iterable[Wire]) -> Wire:
    """The sum of wires."""
    parts: dict[int, float] = {}
    constant, positive = 0.0, True
    for wire in wires:
        for unit, weight in wire.parts.items():
            parts[unit] = parts.get(unit, 0.0) + weight
        constant += wire.constant
        positive &= wire.positive
    return Wire({unit: weight for unit, weight in parts.items() if weight}, constant, positive)


class ReluNetwork:
    """A multi-layer perceptron under construction: wires read the layer made last, units make the next one.

    Example:
        >>> net = ReluNetwork(2)
        >>> a, b = net.inputs
        >>> rest = net.carry(b)
        >>> larger = net.unit(a - b) + rest
        >>> net.advance()
        >>> weights = net.finish([larger])
        >>> apply(weights, torch.tensor([3.0, 5.0]))
        tensor([5.], dtype=torch.float64)
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = [Wire({i: 1.0}) for i in range(inputs)]
        self._width = inputs
        self._pending: list[Wire] = []
        self._index: dict[tuple[frozenset[tuple[int, float]], float], int] = {}
        self._layers: list[tuple[Tensor, Tensor]] = []

    @property
    def depth(self) -> int:
        """The hidden layers made so far."""
        return len(self._layers)

    def unit(self, wire: Wire) -> Wire:
        """relu(wire) as a unit of the next layer; a unit that is there already is used again."""
        key = (frozenset(wire.parts.items()), wire.constant)
        place = self._index.setdefault(key, len(self._pending))
        if place == len(self._pending):
            self._pending.append(wire)
        return Wire({place: 1.0}, positive=True)

    def carry(self, wire: Wire) -> Wire:
        """The wire itself in the next layer: w = relu(w) - relu(-w), one unit where w is never below 0."""
        if not wire.parts:
            return wire
        return self.unit(wire) if wire.positive else self.unit(wire) - self.unit(-wire)

    def advance(self) -> None:
        """Close the next layer: from here on, wires read its units."""
        if not self._pending:
            self.unit(ZERO)  # a layer has at least one unit
        self._layers.append(_matrix(self._pending, self._width))
        self._width, self._pending, self._index = len(self._pending), [], {}

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """The weights (out, in) and biases of the layers closed so far; a ReLU follows each."""
        return list(self._layers)

    def matrix(self, wires: Sequence[Wire]) -> tuple[Tensor, Tensor]:
        """Wires that read the layer made last as one affine map: weight (out, in) and bias."""
        return _matrix(wires, self._width)

    def finish(self, outputs: Sequence[Wire]) -> list[tuple[Tensor, Tensor]]:
        """All layers and a linear one; a ReLU stands between each two."""
        return [*self._layers, self.matrix(outputs)]


def apply(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """Run such a list of layers in plain tensor arithmetic."""
    for place, (weight, bias) in enumerate(layers):
        x = x.to(weight.dtype) @ weight.T + bias
        x = x.relu() if place + 1 < len(layers) else x
    return x


def _matrix(wires: Sequence[Wire], width: int) -> tuple[Tensor, Tensor]:
    weight = torch.zeros(len(wires), width, dtype=torch.float64)
    places = [(row, unit, w) for row, wire in enumerate(wires) for unit, w in wire.parts.items()]
    if places:
        rows, units, values = zip(*places, strict=True)
        weight[list(rows), list(units)] = torch.tensor(values, dtype=torch.float64)
    return weight, torch.tensor([wire.constant for wire in wires], dtype=torch.float64)


# ---- numbers that may be -inf ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Number:
    """A real number or -inf on wires: ``banned`` is 0 where it is finite and at least 1 where it is -inf.

    ``allowed``, made by `gate`, is 0 exactly where it is -inf. Both are None for a number that is always finite. A
    sum of numbers adds values and counts. No large constant ever stands in for -inf, so nothing is rounded away.
    """

    value: Wire
    banned: Wire | None = None
    allowed: Wire | None = None

    @property
    def never(self) -> bool:
        """Whether the number is -inf whatever the inputs."""
        return self.banned is not None and not self.banned.parts and self.banned.constant >= 1


NEVER = Number(ZERO, banned=ONE, allowed=ZERO)


def add(numbers: Sequence[Number]) -> Number:
    """The sum: -inf as soon as one of them is."""
    counts = [n.banned for n in numbers if n.banned is not None]
    return Number(total(n.value for n in numbers), banned=total(counts) if counts else None)


def gate(net: ReluNetwork, number: Number) -> Number:
    """The same number a layer later, its value 0 where it is -inf, and with both counts."""
    if number.banned is None:
        return Number(net.carry(number.value))
    if number.never:
        return NEVER
    shut = CLOSED * number.banned
    value = net.unit(number.value - shut) - net.unit(-number.value - shut)
    return Number(value, banned=net.unit(number.banned), allowed=net.unit(ONE - number.banned))


def larger(net: ReluNetwork, a: Number, b: Number) -> Number:
    """The maximum of two gated numbers, a layer later.

    For finite numbers it is relu(a - b) + relu(b) - relu(-b), as in Prop. 3. The gates shut relu(a - b) where either
    is -inf, and let a through where b is.
    """
    if a.never or b.never:
        return carry(net, b if a.never else a)
    if b.banned is not None and a.banned is None:
        a, b = b, a
    shut = [CLOSED * n.banned for n in (a, b) if n.banned is not None]
    value = net.unit(total([a.value, -b.value, *(-s for s in shut)])) + net.carry(b.value)
    if b.allowed is None or a.allowed is None:
        return Number(value)
    only_a = CLOSED * b.allowed
    value = value + net.unit(a.value - only_a) - net.unit(-a.value - only_a)
    return Number(value, banned=net.unit(ONE - a.allowed - b.allowed), allowed=net.unit(a.allowed + b.allowed))


def carry(net: ReluNetwork, number: Number) -> Number:
    """A gated number a layer later."""
    kept = [None if wire is None else net.carry(wire) for wire in (number.banned, number.allowed)]
    return Number(net.carry(number.value), banned=kept[0], allowed=kept[1])


def maxima(
    net: ReluNetwork, rows: Sequence[Sequence[Number]], keep: Sequence[Number] = ()
) -> tuple[list[Number], list[Number]]:
    """The maximum of every row of gated numbers, pair by pair, in ceil(log2 n) layers; ``keep`` is carried along.

    An empty row has the maximum -inf.
    """
    left = [list(row) or [NEVER] for row in rows]
    kept = list(keep)
    while any(len(row) > 1 for row in left):
        left = [
            [larger(net, row[j], row[j + 1]) for j in range(0, len(row) - 1, 2)]
            + [carry(net, number) for number in row[len(row) - len(row) % 2 :]]
            for row in left
        ]
        kept = [carry(net, number) for number in kept]
        net.advance()
    return [row[0] for row in left], kept
