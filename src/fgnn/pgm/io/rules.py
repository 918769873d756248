"""Cost functions given by a rule instead of a table, where tables or budgets can say the same.

Arithmetic relations become tables. Linear constraints and cliques over 0/1 variables become budgets where their
weights allow. All-different constraints that are hard, or counted by pairs, become tables over pairs. Everything
else becomes one table where it has at most `MOST_ENTRIES` entries, and is refused where it has more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import table_size
from fgnn.pgm.io.costs import OVERHEAD, CostNetwork
from fgnn.pgm.io.tokens import shown

MOST_ENTRIES = 1 << 16


class Parameters(Protocol):
    """The parameters of one function, read in order; ``tag`` names each in formats that spell it out."""

    def word(self, tag: str) -> str: ...

    def cost(self, tag: str) -> float: ...

    def integer(self, tag: str) -> int: ...

    def integers(self, tag: str, count: int) -> list[int]: ...

    def rows(self, tag: str, width: int) -> list[list[float]]:
        """Any number of rows of one width."""

    def sets(self, tag: str, count: int) -> list[list[int]]:
        """``count`` lists of any length."""


Rule = Callable[[CostNetwork, Sequence[int], Parameters, str, str], None]


def add_rule(network: CostNetwork, name: str, scope: Sequence[int], given: Parameters, place: str) -> None:
    """Add the function ``name`` over ``scope`` to the network, or refuse it."""
    if name not in RULES:
        network.refuse(f"Expected a cost function that tables or budgets can express (got {shown(name)})", place)
    network.check_scope(scope, place)
    RULES[name](network, scope, given, place, name)


def _states(network: CostNetwork, scope: Sequence[int], place: str, name: str) -> NDArray[np.int64]:
    """The state of every variable in every cell of a table over the scope, shape (A, k_1, ..., k_A)."""
    size = table_size((network.cardinalities[i] for i in scope), MOST_ENTRIES)
    if size > MOST_ENTRIES:
        told = f"Expected {name} as a table of at most {MOST_ENTRIES} entries"
        network.refuse(f"{told} (got {len(scope)} variables with more)", place)
    return np.indices(network.claim(scope, place))


def _soft(network: CostNetwork, cost: float, place: str, name: str) -> float:
    if network.maximise or cost < 0:
        network.refuse(f"Expected a cost of at least 0 to minimise in {name} (got {cost:g})", place)
    return cost


# ---- relations of two variables --------------------------------------------------------------------------


def _relation(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    constant, delta = given.integers("", 2)
    _soft(network, 0.0, place, name)

    def costs(x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.float64]:
        gap = {
            ">=": y + constant - x,
            ">": y + constant + 1 - x,
            "<=": x - constant - y,
            "<": x - constant + 1 - y,
            "=": np.abs(y + constant - x),
        }[name]
        return np.where(gap <= delta, np.maximum(gap, 0), np.where(gap > 0, np.inf, 0.0))

    _add_pair(network, scope, costs, place, name)


def _disjunction(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    after_x, after_y, penalty = given.integers("", 3)
    _soft(network, penalty, place, name)

    def costs(x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.float64]:
        apart = (x >= y + after_y) | (y >= x + after_x)
        return np.where(apart, 0.0, penalty)

    _add_pair(network, scope, costs, place, name)


def _special_disjunction(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    after_x, after_y, last_x, last_y, cost_x, cost_y = given.integers("", 6)
    _soft(network, min(cost_x, cost_y), place, name)

    def costs(x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.float64]:
        apart = (x >= y + after_y) | (y >= x + after_x)
        allowed = (x <= last_x) & (y <= last_y) & ((x >= last_x) | (y >= last_y) | apart)
        return np.where(allowed, cost_x * (x == last_x) + cost_y * (y == last_y), np.inf)

    _add_pair(network, scope, costs, place, name)


def _add_pair(
    network: CostNetwork,
    scope: Sequence[int],
    costs: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]],
    place: str,
    name: str,
) -> None:
    """Have a table of two variables' states made when the file has been read: it may be large."""
    if len(scope) != 2:
        network.refuse(f"Expected two variables in {shown(name)} (got {len(scope)})", place)
    kx, ky = network.claim(scope, place)
    network.later(lambda: network.add(scope, costs(np.arange(kx)[:, None], np.arange(ky)[None])))


# ---- counting --------------------------------------------------------------------------------------------


def _all_different(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    metric = _metric(network, given, ("var", "dec", "decbi", "hard"), place, name)
    cost = _soft(network, given.cost("cost"), place, name)

    def expand() -> None:
        hard = metric == "hard" or network.forbids(cost)
        if not hard and metric == "var":
            ordered = np.sort(_states(network, scope, place, name), axis=0)
            network.add(scope, cost * (ordered[1:] == ordered[:-1]).sum(0))
            return
        for i, j in combinations(scope, 2):
            network.allowance.claim(OVERHEAD, place)
            ki, kj = network.claim((i, j), place)
            equal = np.eye(ki, kj) == 1
            network.add((i, j), np.where(equal, np.inf if hard else cost, 0.0))

    network.later(expand)


def _cardinality(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    kinds = ("var",) if name == "sgccdp" else ("var", "dec", "wdec")
    metric = _metric(network, given, kinds, place, name)
    cost = _soft(network, given.cost("cost"), place, name)
    bounds = given.rows("bounds", 5 if metric == "wdec" else 3)
    states = _states(network, scope, place, name)
    short = np.zeros(states.shape[1:])
    over = np.zeros(states.shape[1:])
    for value, low, high, *weights in bounds:
        count = (states == value).sum(0)
        down, up = weights or (1.0, 1.0)
        short += down * np.maximum(low - count, 0)
        over += up * np.maximum(count - high, 0)
    # var: how many variables must change; otherwise: by how much all bounds are missed, by weight in wdec
    missed = np.maximum(short, over) if metric == "var" and name == "sgcc" else short + over
    network.add(scope, missed if metric == "wdec" else cost * missed)


def _among(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    _metric(network, given, ("var",), place, name)
    cost = _soft(network, given.cost("cost"), place, name)
    low, high = given.integer("min"), given.integer("max")
    values = {int(row[0]) for row in given.rows("values", 1)}

    def expand() -> None:
        binary = all(network.cardinalities[i] == 2 for i in scope)
        if network.forbids(cost) and binary and values in ({0}, {1}):
            n = len(scope)
            bounds = (low, high) if values == {1} else (n - high, n - low)
            network.add_budget(scope, *bounds, place)
            return
        states = _states(network, scope, place, name)
        count = np.isin(states, list(values)).sum(0)
        network.add(scope, cost * (np.maximum(low - count, 0) + np.maximum(count - high, 0)))

    network.later(expand)


def _maximum(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    default = _soft(network, given.cost("defaultcost"), place, name)
    states = _states(network, scope, place, name)
    parts = np.full(states.shape, default)
    for variable, value, cost in given.rows("tuples", 3):
        if variable not in scope:
            network.refuse(f"Expected a variable of the scope (got {variable:g})", place)
        axis = list(scope).index(int(variable))
        parts[axis][states[axis] == value] = _soft(network, cost, place, name)
    network.add(scope, parts.max(0) if len(scope) else np.zeros(()))


# ---- linear ----------------------------------------------------------------------------------------------


def _knapsack(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    capacity = given.integer("capacity")
    if name == "knapsack":
        weights = [{1: w} for w in given.integers("weights", len(scope))]
    else:
        weights = []
        for listed in given.sets("weightedvalues", len(scope)):
            if len(listed) % 2:
                network.refuse(f"Expected pairs of a value and a weight (got {len(listed)} numbers)", place)
            weights.append(dict(zip(listed[::2], listed[1::2], strict=True)))
    _linear(network, scope, weights, capacity, place, name)


def _clique(network: CostNetwork, scope: Sequence[int], given: Parameters, place: str, name: str) -> None:
    most = given.integer("rhs")
    weights = [dict.fromkeys(values, -1) for values in given.sets("values", len(scope))]
    _linear(network, scope, weights, -most, place, name)


def _linear(
    network: CostNetwork, scope: Sequence[int], weights: list[dict[int, int]], least: int, place: str, name: str
) -> None:
    """Forbid the assignments whose weights sum to less than ``least``."""
    counted = [(i, w) for i, w in zip(scope, weights, strict=True) if any(w.values())]
    units = {w.get(1, 0) - w.get(0, 0) for _, w in counted}
    if len(units) == 1 and all(network.cardinalities[i] == 2 and w.keys() <= {0, 1} for i, w in counted):
        (unit,) = units
        rest = least - sum(w.get(0, 0) for _, w in counted)  # unit * (number of ones) >= rest
        ones = [i for i, _ in counted]
        if unit > 0:
            network.add_budget(ones, -(-rest // unit), len(ones), place)
            return
        if unit < 0:
            network.add_budget(ones, 0, rest // unit, place)
            return
    if sum(max(map(abs, w.values()), default=0) for w in weights) >= 1 << 62:
        network.refuse(f"Expected weights in {name} that sum to less than 2^62 (got more)", place)
    states = _states(network, scope, place, name)
    total = np.zeros(states.shape[1:], dtype=np.int64)
    for axis, weight in enumerate(weights):
        for value, w in weight.items():
            total += w * (states[axis] == value)
    network.add(scope, np.where(total >= least, 0.0, np.inf))


def _metric(network: CostNetwork, given: Parameters, known: Sequence[str], place: str, name: str) -> str:
    metric = given.word("metric")
    if metric not in known:
        network.refuse(f"Expected {name} by {' or '.join(known)} (got {shown(metric)})", place)
    return metric


RULES: dict[str, Rule] = {
    ">=": _relation,
    ">": _relation,
    "<=": _relation,
    "<": _relation,
    "=": _relation,
    "disj": _disjunction,
    "sdisj": _special_disjunction,
    "salldiff": _all_different,
    "salldiffdp": _all_different,
    "salldiffkp": _all_different,
    "sgcc": _cardinality,
    "sgccdp": _cardinality,
    "samong": _among,
    "samongdp": _among,
    "max": _maximum,
    "smaxdp": _maximum,
    "knapsack": _knapsack,
    "knapsackp": _knapsack,
    "clique": _clique,
}
