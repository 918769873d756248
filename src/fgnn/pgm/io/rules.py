"""Cost functions given by a rule, as tables or budgets.

Arithmetic relations become tables. Linear constraints and cliques over 0/1 variables become budgets if their weights
allow it. All-different constraints that are hard, or counted by pairs, become tables over pairs. Any other rule
becomes one table of at most `MOST_ENTRIES` entries; larger ones are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import table_size
from fgnn.pgm.io.costs import OVERHEAD, CostNetwork
from fgnn.pgm.io.numbers import shown

MOST_ENTRIES = 1 << 16

_Ints = NDArray[np.int64]


class Parameters(Protocol):
    """The parameters of one rule, read in order; ``tag`` is the parameter's name in formats that spell it out."""

    def word(self, tag: str) -> str: ...

    def cost(self, tag: str) -> float: ...

    def integer(self, tag: str) -> int: ...

    def integers(self, tag: str, count: int) -> list[int]: ...

    def rows(self, tag: str, width: int) -> list[list[float]]:
        """Any number of rows of one width."""

    def sets(self, tag: str, count: int) -> list[list[int]]:
        """``count`` lists of any length."""


def add_rule(network: CostNetwork, name: str, scope: Sequence[int], parameters: Parameters, place: str) -> None:
    """Add the rule ``name`` over ``scope`` to the network, or reject it."""
    if name not in RULES:
        network.text.fail(f"Expected a cost function that tables or budgets can express (got {shown(name)})", place)
    network.check_scope(scope, place)
    RULES[name](_Rule(network, name, list(scope), parameters, place))


@dataclass(frozen=True, eq=False)
class _Rule:
    """One rule of a file: its name, scope and parameters, and the place for error messages."""

    network: CostNetwork
    name: str
    scope: list[int]
    parameters: Parameters
    place: str

    def refuse(self, what: str) -> NoReturn:
        self.network.text.fail(what, self.place)

    def metric(self, *known: str) -> str:
        """Read the violation measure."""
        metric = self.parameters.word("metric")
        if metric not in known:
            self.refuse(f"Expected {self.name} by {' or '.join(known)} (got {shown(metric)})")
        return metric

    def cost(self, tag: str = "cost") -> float:
        """Read a cost that a violation adds."""
        return self.soft(self.parameters.cost(tag))

    def soft(self, cost: float) -> float:
        """Check a cost that a violation adds."""
        if self.network.maximise or cost < 0:
            self.refuse(f"Expected a cost of at least 0 to minimise in {self.name} (got {cost:g})")
        return cost

    def states(self) -> _Ints:
        """The state of every variable in every cell of a table over the scope, shape (A, k_1, ..., k_A)."""
        size = table_size((self.network.cardinalities[i] for i in self.scope), MOST_ENTRIES)
        if size > MOST_ENTRIES:
            expected = f"Expected {self.name} as a table of at most {MOST_ENTRIES} entries"
            self.refuse(f"{expected} (got {len(self.scope)} variables with more)")
        return np.indices(self.network.claim(self.scope, self.place))

    def add(self, costs: NDArray[np.float64]) -> None:
        self.network.add(self.scope, costs)

    def add_pair(self, costs: Callable[[_Ints, _Ints], NDArray[np.float64]]) -> None:
        """Add a table over two variables. It may be large, so it is computed after the whole file is read."""
        if len(self.scope) != 2:
            self.refuse(f"Expected two variables in {shown(self.name)} (got {len(self.scope)})")
        kx, ky = self.network.claim(self.scope, self.place)
        self.network.later(lambda: self.add(costs(np.arange(kx)[:, None], np.arange(ky)[None])))


# ---- relations of two variables --------------------------------------------------------------------------


def _relation(rule: _Rule) -> None:
    constant, delta = rule.parameters.integers("", 2)
    rule.soft(0.0)

    def costs(x: _Ints, y: _Ints) -> NDArray[np.float64]:
        gap = {
            ">=": y + constant - x,
            ">": y + constant + 1 - x,
            "<=": x - constant - y,
            "<": x - constant + 1 - y,
            "=": np.abs(y + constant - x),
        }[rule.name]
        return np.where(gap <= delta, np.maximum(gap, 0), np.where(gap > 0, np.inf, 0.0))

    rule.add_pair(costs)


def _disjunction(rule: _Rule) -> None:
    after_x, after_y, penalty = rule.parameters.integers("", 3)
    rule.soft(penalty)
    rule.add_pair(lambda x, y: np.where((x >= y + after_y) | (y >= x + after_x), 0.0, penalty))


def _special_disjunction(rule: _Rule) -> None:
    after_x, after_y, last_x, last_y, cost_x, cost_y = rule.parameters.integers("", 6)
    rule.soft(min(cost_x, cost_y))

    def costs(x: _Ints, y: _Ints) -> NDArray[np.float64]:
        apart = (x >= y + after_y) | (y >= x + after_x)
        allowed = (x <= last_x) & (y <= last_y) & ((x >= last_x) | (y >= last_y) | apart)
        return np.where(allowed, cost_x * (x == last_x) + cost_y * (y == last_y), np.inf)

    rule.add_pair(costs)


# ---- counting --------------------------------------------------------------------------------------------


def _all_different(rule: _Rule) -> None:
    metric = rule.metric("var", "dec", "decbi", "hard")
    cost = rule.cost()

    def expand() -> None:
        network = rule.network
        hard = metric == "hard" or network.forbids(cost)
        if not hard and metric == "var":
            ordered = np.sort(rule.states(), axis=0)
            rule.add(cost * (ordered[1:] == ordered[:-1]).sum(0))
            return
        for i, j in combinations(rule.scope, 2):
            network.text.claim(OVERHEAD, rule.place)
            ki, kj = network.claim((i, j), rule.place)
            network.add((i, j), np.where(np.eye(ki, kj) == 1, np.inf if hard else cost, 0.0))

    rule.network.later(expand)


def _cardinality(rule: _Rule) -> None:
    metric = rule.metric("var") if rule.name == "sgccdp" else rule.metric("var", "dec", "wdec")
    cost = rule.cost()
    bounds = rule.parameters.rows("bounds", 5 if metric == "wdec" else 3)
    states = rule.states()
    short = np.zeros(states.shape[1:])
    over = np.zeros(states.shape[1:])
    for value, low, high, *weights in bounds:
        count = (states == value).sum(0)
        down, up = weights or (1.0, 1.0)
        short += down * np.maximum(low - count, 0)
        over += up * np.maximum(count - high, 0)
    # var: the number of variables that must change; otherwise: the total violation of the bounds, weighted in wdec
    violation = np.maximum(short, over) if metric == "var" and rule.name == "sgcc" else short + over
    rule.add(violation if metric == "wdec" else cost * violation)


def _among(rule: _Rule) -> None:
    rule.metric("var")
    cost = rule.cost()
    low, high = rule.parameters.integer("min"), rule.parameters.integer("max")
    values = {int(row[0]) for row in rule.parameters.rows("values", 1)}

    def expand() -> None:
        network = rule.network
        binary = all(network.cardinalities[i] == 2 for i in rule.scope)
        if network.forbids(cost) and binary and values in ({0}, {1}):
            n = len(rule.scope)
            bounds = (low, high) if values == {1} else (n - high, n - low)
            network.add_budget(rule.scope, *bounds, rule.place)
            return
        count = np.isin(rule.states(), list(values)).sum(0)
        rule.add(cost * (np.maximum(low - count, 0) + np.maximum(count - high, 0)))

    rule.network.later(expand)


def _maximum(rule: _Rule) -> None:
    default = rule.cost("defaultcost")
    states = rule.states()
    costs = np.full(states.shape, default)
    for variable, value, cost in rule.parameters.rows("tuples", 3):
        if variable not in rule.scope:
            rule.refuse(f"Expected a variable of the scope (got {variable:g})")
        axis = rule.scope.index(int(variable))
        costs[axis][states[axis] == value] = rule.soft(cost)
    rule.add(costs.max(0) if rule.scope else np.zeros(()))


# ---- linear ----------------------------------------------------------------------------------------------


def _knapsack(rule: _Rule) -> None:
    capacity = rule.parameters.integer("capacity")
    if rule.name == "knapsack":
        weights = [{1: w} for w in rule.parameters.integers("weights", len(rule.scope))]
    else:
        weights = []
        for pairs in rule.parameters.sets("weightedvalues", len(rule.scope)):
            if len(pairs) % 2:
                rule.refuse(f"Expected pairs of a value and a weight (got {len(pairs)} numbers)")
            weights.append(dict(zip(pairs[::2], pairs[1::2], strict=True)))
    _add_linear(rule, weights, capacity)


def _clique(rule: _Rule) -> None:
    most = rule.parameters.integer("rhs")
    weights = [dict.fromkeys(values, -1) for values in rule.parameters.sets("values", len(rule.scope))]
    _add_linear(rule, weights, -most)


def _add_linear(rule: _Rule, weights: list[dict[int, int]], least: int) -> None:
    """Forbid the assignments whose weights, by variable and state, sum to less than ``least``."""
    network = rule.network
    counted = [(i, w) for i, w in zip(rule.scope, weights, strict=True) if any(w.values())]
    units = {w.get(1, 0) - w.get(0, 0) for _, w in counted}
    if len(units) == 1 and all(network.cardinalities[i] == 2 and w.keys() <= {0, 1} for i, w in counted):
        (unit,) = units
        rest = least - sum(w.get(0, 0) for _, w in counted)  # unit * (number of ones) >= rest
        ones = [i for i, _ in counted]
        if unit:
            low, high = (-(-rest // unit), len(ones)) if unit > 0 else (0, rest // unit)
            network.add_budget(ones, low, high, rule.place)
            return
    if sum(max(map(abs, w.values()), default=0) for w in weights) >= 1 << 62:
        rule.refuse(f"Expected weights in {rule.name} that sum to less than 2^62 (got more)")
    states = rule.states()
    total = np.zeros(states.shape[1:], dtype=np.int64)
    for axis, weight in enumerate(weights):
        for value, w in weight.items():
            total += w * (states[axis] == value)
    rule.add(np.where(total >= least, 0.0, np.inf))


RULES: dict[str, Callable[[_Rule], None]] = {
    **dict.fromkeys((">=", ">", "<=", "<", "="), _relation),
    "disj": _disjunction,
    "sdisj": _special_disjunction,
    **dict.fromkeys(("salldiff", "salldiffdp", "salldiffkp"), _all_different),
    **dict.fromkeys(("sgcc", "sgccdp"), _cardinality),
    **dict.fromkeys(("samong", "samongdp"), _among),
    **dict.fromkeys(("max", "smaxdp"), _maximum),
    **dict.fromkeys(("knapsack", "knapsackp"), _knapsack),
    "clique": _clique,
}
