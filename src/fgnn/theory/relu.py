"""Exact ReLU networks built unit by unit: affine functions, maxima, and numbers that may be -inf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Infinity inside a gate: larger than any value, yet sums of many stay finite in double precision. It is multiplied
# by a count that is exactly 0, or drives a unit below 0, so it never causes rounding.
CLOSED = 1e100


@dataclass(frozen=True, eq=False)
class Wire:
    """An affine function of the units of one layer; ``positive`` guarantees that it is never below 0."""

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
    """A multi-layer perceptron under construction: wires read the last layer, units form the next one.

    Example:
        >>> net = ReluNetwork(2)
        >>> a, b = net.inputs
        >>> rest = net.carry(b)
        >>> larger = net.unit(a - b) + rest
        >>> net.advance()
        >>> [tuple(weight.shape) for weight, _ in net.finish([larger])]
        [(3, 2), (1, 3)]

    Attributes:
        layers: The weights (out, in) and biases of the completed layers; a ReLU follows each.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = [Wire({i: 1.0}) for i in range(inputs)]
        self._width = inputs
        self._pending: list[Wire] = []
        self._index: dict[tuple[frozenset[tuple[int, float]], float], int] = {}
        self.layers: list[tuple[Tensor, Tensor]] = []

    def unit(self, wire: Wire) -> Wire:
        """relu(wire) as a unit of the next layer; equal wires share a unit."""
        key = (frozenset(wire.parts.items()), wire.constant)
        unit = self._index.setdefault(key, len(self._pending))
        if unit == len(self._pending):
            self._pending.append(wire)
        return Wire({unit: 1.0}, positive=True)

    def carry(self, wire: Wire) -> Wire:
        """The wire in the next layer: w = relu(w) - relu(-w), or one unit if w is never below 0."""
        if not wire.parts:
            return wire
        return self.unit(wire) if wire.positive else self.unit(wire) - self.unit(-wire)

    def advance(self) -> None:
        """Complete the next layer; wires now read its units."""
        if not self._pending:
            self.unit(ZERO)  # a layer needs at least one unit
        self.layers.append(self.matrix(self._pending))
        self._width, self._pending, self._index = len(self._pending), [], {}

    def matrix(self, wires: Sequence[Wire]) -> tuple[Tensor, Tensor]:
        """Wires on the last layer as one affine map: weight (out, in) and bias."""
        weight = torch.zeros(len(wires), self._width, dtype=torch.float64)
        entries = [(row, unit, w) for row, wire in enumerate(wires) for unit, w in wire.parts.items()]
        if entries:
            rows, units, values = zip(*entries, strict=True)
            weight[list(rows), list(units)] = torch.tensor(values, dtype=torch.float64)
        return weight, torch.tensor([wire.constant for wire in wires], dtype=torch.float64)

    def finish(self, outputs: Sequence[Wire]) -> list[tuple[Tensor, Tensor]]:
        """All layers and a final linear one, with ReLUs in between."""
        return [*self.layers, self.matrix(outputs)]


# ---- numbers that may be -inf ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Number:
    """A real number or -inf on wires: ``forbidden`` is 0 if it is finite and at least 1 if it is -inf.

    ``allowed``, set by `gate`, is 0 exactly if the number is -inf. Both are None for a number that is always finite.
    Sums add values and counts. No large constant represents -inf, so there is no rounding.
    """

    value: Wire
    forbidden: Wire | None = None
    allowed: Wire | None = None

    @property
    def is_minus_inf(self) -> bool:
        """Whether the number is -inf for all inputs."""
        return self.forbidden is not None and not self.forbidden.parts and self.forbidden.constant >= 1


MINUS_INF = Number(ZERO, forbidden=ONE, allowed=ZERO)


def add(numbers: Sequence[Number]) -> Number:
    """The sum, -inf if any summand is."""
    counts = [n.forbidden for n in numbers if n.forbidden is not None]
    return Number(total(n.value for n in numbers), forbidden=total(counts) if counts else None)


def gate(net: ReluNetwork, number: Number) -> Number:
    """The number one layer later, with both counts; its value is 0 if it is -inf."""
    if number.forbidden is None:
        return Number(net.carry(number.value))
    if number.is_minus_inf:
        return MINUS_INF
    shut = CLOSED * number.forbidden
    value = net.unit(number.value - shut) - net.unit(-number.value - shut)
    return Number(value, forbidden=net.unit(number.forbidden), allowed=net.unit(ONE - number.forbidden))


def larger(net: ReluNetwork, a: Number, b: Number) -> Number:
    """The maximum of two gated numbers, one layer later.

    For finite numbers it is relu(a - b) + relu(b) - relu(-b), as in Prop. 3. The gates close relu(a - b) if either
    is -inf, and pass a if b is.
    """
    if a.is_minus_inf or b.is_minus_inf:
        return carry(net, b if a.is_minus_inf else a)
    if b.forbidden is not None and a.forbidden is None:
        a, b = b, a
    shut = [CLOSED * n.forbidden for n in (a, b) if n.forbidden is not None]
    value = net.unit(total([a.value, -b.value, *(-s for s in shut)])) + net.carry(b.value)
    if b.allowed is None or a.allowed is None:
        return Number(value)
    only_a = CLOSED * b.allowed
    value = value + net.unit(a.value - only_a) - net.unit(-a.value - only_a)
    return Number(value, forbidden=net.unit(ONE - a.allowed - b.allowed), allowed=net.unit(a.allowed + b.allowed))


def carry(net: ReluNetwork, number: Number) -> Number:
    """A gated number one layer later."""
    counts = (None if wire is None else net.carry(wire) for wire in (number.forbidden, number.allowed))
    return Number(net.carry(number.value), *counts)


def maxima(
    net: ReluNetwork, rows: Sequence[Sequence[Number]], keep: Sequence[Number] = ()
) -> tuple[list[Number], list[Number]]:
    """The maximum of every row of gated numbers by a tree of depth ceil(log2 n), and ``keep`` carried along.

    The maximum of an empty row is -inf.
    """
    remaining = [list(row) or [MINUS_INF] for row in rows]
    carried = list(keep)
    while any(len(row) > 1 for row in remaining):
        remaining = [
            [larger(net, row[j], row[j + 1]) for j in range(0, len(row) - 1, 2)]
            + [carry(net, number) for number in row[len(row) - len(row) % 2 :]]
            for row in remaining
        ]
        carried = [carry(net, number) for number in carried]
        net.advance()
    return [row[0] for row in remaining], carried
