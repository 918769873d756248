"""Exact ReLU networks built unit by unit: affine functions, and maxima that round nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# The gain of a comparison: two different doubles differ by at least 2^-53 of the larger, so GAIN times their difference
# reaches either. GAIN - 1 is a double too, which keeps `larger` exact over the reals.
GAIN = 2.0**53


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

    def split(self, wire: Wire) -> tuple[Wire, Wire]:
        """The positive and the negative part of a wire, relu(w) and relu(-w), in the next layer."""
        return self.unit(wire), ZERO if wire.positive else self.unit(-wire)

    def carry(self, wire: Wire) -> Wire:
        """The wire in the next layer: w = relu(w) - relu(-w), or one unit if w is never below 0."""
        if not wire.parts:
            return wire
        up, down = self.split(wire)
        return Wire(up.parts, positive=True) if wire.positive else up - down

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


# ---- maxima ----------------------------------------------------------------------------------------------------


def larger(
    net: ReluNetwork, pairs: Sequence[tuple[Wire, Wire]], keep: Sequence[Wire] = ()
) -> tuple[list[Wire], list[Wire]]:
    r"""The maximum of every pair, and ``keep``, two layers later.

    Prop. 3 writes :math:`\max(a, b) = \mathrm{relu}(a - b) + b`, which cancels if b is far below a: max(0.3, -1e9)
    becomes 0.29999995. Here the comparison only opens and shuts gates, and the result is one of the two, bit for bit.
    With :math:`s = \mathrm{relu}(a - b)`, :math:`r = \mathrm{relu}(b - a)` and a huge G, the positive part is

    .. math:: \mathrm{relu}(a^+ - G r) + \mathrm{relu}(b^+ - G s) - \mathrm{relu}(a - G r - (G + 1) s).

    Unless a = b, r or s shuts the unit of the smaller number. The last unit removes what a tie would count twice, and
    over the reals also what passes a gate if a and b differ by less than a part in G. The negative part is alike.

    No single hidden layer does this: where b tends to -inf the result must not depend on b, so terms in b cancel.
    """
    units = [(net.unit(a - b), net.unit(b - a), *net.split(a), *net.split(b)) for a, b in pairs]
    kept = [net.carry(wire) for wire in keep]
    net.advance()
    results = []
    # G of the positive parts is GAIN - 1 and of the negative parts GAIN, so that every weight is a double
    for s, r, up_a, down_a, up_b, down_b in units:
        up = net.unit(up_a - (GAIN - 1) * r) + net.unit(up_b - (GAIN - 1) * s)
        up = up - net.unit(up_a - down_a - (GAIN - 1) * r - GAIN * s)
        if down_a is ZERO or down_b is ZERO:  # one of them is never below 0
            results.append(Wire(up.parts, positive=True))
            continue
        down = net.unit(down_a - GAIN * r) + net.unit(down_b - GAIN * s)
        down = down - net.unit(down_a - up_a - GAIN * r - (GAIN - 1) * s)
        results.append(up - down)
    kept = [net.carry(wire) for wire in kept]
    net.advance()
    return results, kept


def larger_by_difference(
    net: ReluNetwork, pairs: Sequence[tuple[Wire, Wire]], keep: Sequence[Wire] = ()
) -> tuple[list[Wire], list[Wire]]:
    """The maximum of every pair as in Prop. 3, relu(a - b) + relu(b) - relu(-b), and ``keep``, one layer later."""
    results = [net.unit(a - b) + net.carry(b) for a, b in pairs]
    kept = [net.carry(wire) for wire in keep]
    net.advance()
    return [Wire(wire.parts, wire.constant, b.positive) for wire, (_, b) in zip(results, pairs, strict=True)], kept


Larger = Callable[[ReluNetwork, Sequence[tuple[Wire, Wire]], Sequence[Wire]], tuple[list[Wire], list[Wire]]]


def maxima(
    net: ReluNetwork, rows: Sequence[Sequence[Wire]], keep: Sequence[Wire] = (), compare: Larger = larger
) -> tuple[list[Wire], list[Wire]]:
    """The maximum of every row by a tree of ceil(log2 n) comparisons, and ``keep`` carried along.

    Args:
        net: The network to extend.
        rows: At least one wire each.
        keep: Wires to carry to the last layer.
        compare: How to compare pairs: `larger` or `larger_by_difference`.
    """
    remaining, carried = [list(row) for row in rows], list(keep)
    while any(len(row) > 1 for row in remaining):
        pairs = [(row[j], row[j + 1]) for row in remaining for j in range(0, len(row) - 1, 2)]
        odd = [row[-1] for row in remaining if len(row) % 2]
        best, carried = compare(net, pairs, [*odd, *carried])
        winners, singles = iter(best), iter(carried[: len(odd)])
        carried = carried[len(odd) :]
        remaining = [
            [next(winners) for _ in range(len(row) // 2)] + [next(singles) for _ in range(len(row) % 2)]
            for row in remaining
        ]
    return [row[0] for row in remaining], carried
