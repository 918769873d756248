"""Random models with factors that depend on a sum: hard and soft, weighted, modulo two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from hypothesis import strategies as st
from torch import Tensor

from fgnn import GraphicalModel
from fgnn.pgm import AutomatonKind, Kind
from fgnn.pgm.factors import Counter
from fgnn.pgm.factors.automaton import Steps
from fgnn.pgm.factors.gadget import FREE
from fgnn.pgm.factors.kind import Array, Shape, StructuredFactor
from tests.strategies import models


@dataclass(frozen=True)
class ScoredSum(AutomatonKind):
    """A score for every sum of the weights, as a user might add it."""

    weights: tuple[tuple[int, ...], ...]
    name: ClassVar[str] = "scored-sum"
    numbers: ClassVar[Mapping[str, type]] = {"scores": float}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        assert numbers["scores"].shape[1] == 1 + sum(map(max, self.weights))

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        return numbers["scores"]

    def counter(self, shape: Shape) -> Counter:
        return Counter(self.weights, np.arange(1 + sum(map(max, self.weights))))

    def steps(self, shape: Shape) -> Steps:
        """The states are the partial sums."""
        largest = np.cumsum([0, *(max(w) for w in self.weights)])
        return tuple(np.arange(size + 1)[:, None] + w for size, w in zip(largest, self.weights, strict=False))


@dataclass(frozen=True)
class Residue(Kind):
    """A score for the sum of the states modulo a number, which may be less than the number of states."""

    modulus: int
    name: ClassVar[str] = "residue"
    numbers: ClassVar[Mapping[str, type]] = {"scores": float}

    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        assert numbers["scores"].shape[1] == self.modulus

    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        return numbers["scores"]

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        residue = x.sum(-1, keepdim=True) % self.modulus
        return theta.expand(*residue.shape[:-1], -1).gather(-1, residue).squeeze(-1)

    def counter(self, shape: Shape) -> Counter:
        return Counter(tuple(tuple(range(k)) for k in shape), np.arange(self.modulus), self.modulus)


@st.composite
def counting_models(draw: st.DrawFn, max_variables: int = 6, max_cardinality: int = 4) -> GraphicalModel:
    """Models of tables and budgets with some linear constraints, parities and scored sums besides."""
    model: GraphicalModel = draw(models(max_variables, 3, max_cardinality, max_tables=3, max_budgets=1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    cards = model.cardinalities
    for name in draw(st.lists(st.sampled_from(["linear", "parity", "scored"]), min_size=1, max_size=3)):
        allowed = np.nonzero(cards == 2)[0] if name == "parity" else np.arange(len(cards))
        if not len(allowed):
            continue
        scope = rng.permutation(allowed)[: rng.integers(1, len(allowed) + 1)].tolist()
        if name == "parity":
            model.add_parity(scope, int(rng.integers(2)))
        elif name == "linear":
            weights = rng.integers(-3, 4, size=(len(scope), max(cards[scope])))
            model.add_linear(scope, weights, at_least=int(rng.integers(-4, 2)), at_most=int(rng.integers(2, 8)))
        else:
            kind = ScoredSum(tuple(tuple(range(0, 2 * int(cards[i]), 2)) for i in scope))
            scores = rng.normal(size=1 + sum(map(max, kind.weights)))
            model.add_factors(kind, [scope], scores=np.where(rng.random(len(scores)) < 0.2, -np.inf, scores)[None])
    return model


def distance(factor: StructuredFactor, x: np.ndarray) -> int:
    """How far the sum of a joint state is from the nearest one allowed, by a search outwards."""
    counter = factor.kind.counter(factor.shape)
    assert counter is not None
    weights = [np.array(w) - min(w) for w in counter.weights]
    largest = sum(int(w.max()) for w in weights)
    table = factor.as_table().ravel()
    # a joint state of every sum that there is; other sums follow the entries of the counter
    joint = np.indices(factor.shape).reshape(len(factor.shape), -1).T
    total = sum(w[joint[:, a]] for a, w in enumerate(weights))
    by_sum = {int(t): table[np.nonzero(total == t)[0][0]] for t in np.unique(total)}
    at = sum(int(w[s]) for w, s in zip(weights, x, strict=True))
    for d in range(largest + 1):
        for t in (at - d, at + d):
            if 0 <= t <= largest and (by_sum[t] if t in by_sum else _entry(factor, counter, t)) > -np.inf:
                return d
    return largest + 1


def _entry(factor: StructuredFactor, counter: Counter, total: int) -> float:
    """The score of a sum that no joint state has."""
    entry = int(counter.entries[total])
    if entry >= 0:
        return float(factor.numbers["scores"][entry])
    return 0.0 if entry == FREE else -np.inf
