"""One thread of the search: annealing, tabu search and climbs by subgraphs, whichever has paid off lately."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fgnn.infer.search.anneal import best_alone, descend, energy_gaps, fill_field
from fgnn.infer.search.arrays import Floats, Ints
from fgnn.infer.search.chance import State, generator, uniform
from fgnn.infer.search.crossover import cross
from fgnn.infer.search.pool import Penalised, Pool
from fgnn.infer.search.strategies import LEAST, Annealing, Climb, Repair, Strategy, TabuSearch
from fgnn.infer.search.tabu import share_in_conflict

_REPAIRS = 6
_FLOOR = 0.15  # share of every strategy; one whose results come closest to the best gets 1 more, gains another
_EVEN = 12  # slices of every strategy before gains count
_FLAT = 0.45  # share of variables in conflict below which tabu search pays off; with opposed unaries it is a half
_FAVOUR = 8.0  # how much more it then gets
_REPAIRING = 0.5  # share of the time for constraints alone, until there is a feasible assignment
_MEMORY = 0.99  # weight of the past, per slice

MOVES: dict[str, Callable[[Worker], Strategy]] = {
    "anneal": Annealing,
    "trees": lambda worker: Climb(worker, trees=True),
    "subgraphs": Climb,
    "tabu": TabuSearch,
}


class Worker:
    """Searches one model in slices.

    Args:
        model: The model; its penalty changes.
        pool: Shared by all workers of the model.
        seed: Of all random choices.
        moves: ``anneal``, ``trees``, ``subgraphs`` and ``tabu``, or some of them. Beside others, ``tabu`` is used only
            where the first assignment leaves most variables without conflict, and then most of all.
        belief: Probabilities of all states, see `fgnn.infer.search.guide`.
    """

    def __init__(
        self,
        model: Penalised,
        pool: Pool,
        seed: Sequence[int],
        moves: Sequence[str],
        belief: Floats | None = None,
    ) -> None:
        self.model, self.pool, self.belief = model, pool, belief
        self.m = m = model.arrays
        self.rng = generator(*seed)
        self.field = np.empty(len(m.unary))
        self.sums = np.zeros(len(m.count_first) - 1, np.int64)
        self.scratch = np.zeros(len(m.cards), np.int64)
        self.order = seed[-1]
        self.start = self._start()
        self.slices = 0
        self.enough = False  # whether the penalty has led to a feasible assignment
        self.flat = share_in_conflict(m, self.start, self.field) < _FLAT
        used = [name for name in moves if name != "tabu" or self.flat or len(moves) == 1]
        self.strategies = {name: MOVES[name](self) for name in used}
        self.repair = Repair(self) if model.hard else None

    def _start(self) -> Ints:
        """Set temperatures and return a first assignment."""
        m = self.m
        x = best_alone(m)
        fill_field(m, x, self.field, self.sums)
        descend(m, x, self.field, self.sums, LEAST, 20, self.rng)
        self._repair(x)
        gaps = energy_gaps(m, x, self.field)
        gaps = gaps[np.isfinite(gaps) & (gaps > 1e-9)]
        self.hot = float(np.median(gaps)) if len(gaps) else 0.0
        self.cold = min(0.05 * self.hot, 0.2 * float(np.quantile(gaps, 0.05))) if len(gaps) else 0.0
        return x

    def _repair(self, x: Ints) -> None:
        """Try to make an assignment feasible: descend under ever higher penalties."""
        penalty = self.model.penalty
        for power in range(_REPAIRS):
            if self.model.rank(x)[0] == 0.0:
                break
            self.model.set_penalty(penalty * 4.0**power)
            fill_field(self.m, x, self.field, self.sums)
            descend(self.m, x, self.field, self.sums, LEAST, 20, self.rng)
        self.model.set_penalty(penalty)
        fill_field(self.m, x, self.field, self.sums)

    def slice(self, left: float) -> None:
        """Search for some 15 ms; about ``left`` more slices will follow."""
        if self.repair is not None and self.pool.best().rank[0] < 0 and uniform(self.rng) < _REPAIRING:
            self.repair.step(left)
            return
        strategies = list(self.strategies.values())
        weights = [_FAVOUR if self.flat and name == "tabu" else 1.0 for name in self.strategies]
        self.slices += 1
        if self.slices <= _EVEN * len(strategies):
            chosen = strategies[choose(weights, self.rng)]
        else:
            rates = [s.gained / (1.0 + s.spent) for s in strategies]
            closest = min(s.shortfall for s in strategies)
            shares = [
                weight * (_FLOOR + (s.shortfall == closest) + (rate / sum(rates) if sum(rates) > 0 else 0.0))
                for s, rate, weight in zip(strategies, rates, weights, strict=True)
            ]
            chosen = strategies[choose(shares, self.rng)]
        for s in strategies:
            s.gained, s.spent = _MEMORY * s.gained, _MEMORY * s.spent
        chosen.slices += 1
        chosen.spent += 1.0
        chosen.step(left)

    def offer(self, x: Ints, strategy: Strategy) -> None:
        """Note how good a strategy's result is, cross it with the elites and offer both to the pool."""
        rank = self.submit(x, strategy)
        far, score = self.pool.best().rank
        shortfall = (far - rank[0]) * self.model.penalty + max(0.0, score - rank[1])
        strategy.shortfall = shortfall if strategy.shortfall == 0.0 else 0.7 * strategy.shortfall + 0.3 * shortfall
        child = x.copy()
        gain = sum(cross(self.m, child, elite.x, self.rng) for elite in self.pool.elites)
        if gain > 0:
            rank = self.submit(child, strategy)
        if self.model.hard and not self.model.strict:
            self.enough = self.enough or rank[0] == 0.0
            self.model.set_penalty(self.model.penalty * (0.97 if rank[0] == 0.0 else 1.3 if self.enough else 2.5))

    def submit(self, x: Ints, strategy: Strategy) -> tuple[float, float]:
        """Offer an assignment to the pool as it is, and credit what it gains to the strategy."""
        rank, best = self.model.rank(x), self.pool.best().rank
        self.pool.offer(x, rank, self.order)
        strategy.failed += 1
        if rank > best:
            strategy.failed = 0
            strategy.gained += (rank[0] - best[0]) * self.model.penalty + max(0.0, rank[1] - best[1])
        return rank


def choose(shares: Sequence[float], rng: State) -> int:
    """An index with probability in proportion to its share."""
    left = uniform(rng) * sum(shares)
    for index, share in enumerate(shares):
        left -= share
        if left < 0:
            return index
    return len(shares) - 1
