"""A kind of factor for tests of methods that read counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fgnn.pgm import Kind
from fgnn.pgm.factors import Counter
from fgnn.pgm.factors.kind import Array, Shape


@dataclass(frozen=True)
class NumberOfOnes(Kind):
    """A log-potential for each number of ones: a kind that has a counter and nothing else."""

    name: ClassVar[str] = "number-of-ones"
    numbers: ClassVar[Mapping[str, type]] = {"values": float}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        assert numbers["values"].shape[1] == len(shape) + 1

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        return numbers["values"]

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        return theta.expand(*x.shape[:-1], -1).gather(-1, x.sum(-1, keepdim=True)).squeeze(-1)

    def counter(self, shape: Shape) -> Counter:
        return Counter.of_ones(len(shape))
