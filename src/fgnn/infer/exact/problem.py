"""The variables that propagation leaves free, and the factors over them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.allowed_states import AllowedStates, CounterShape, TableShape


@dataclass(frozen=True)
class Source:
    """The numbers of a factor in a batch: the unaries of a variable, a table of a group, the potentials of all sums."""

    kind: Literal["unary", "table", "sum"]
    group: int
    index: int


@dataclass(frozen=True, eq=False)
class Relation:
    """A factor over free variables: which joint states are allowed, and where their numbers are."""

    scope: tuple[int, ...]
    allowed: NDArray[np.bool_] | None  # shape: (k_1, ..., k_A); None: all
    source: Source | None  # None: no numbers, only `allowed`
    cells: NDArray[np.int64] | None  # shape: as `allowed`, the entry of the source at each joint state; None: in order
    rows: NDArray[np.int32] | None = None  # shape: (S, A), the allowed joint states in order, instead of `allowed`

    @cached_property
    def key(self) -> bytes | None:
        """Equal for relations of equal shapes that allow the same joint states; None if all are allowed."""
        array = self.allowed if self.rows is None else self.rows
        if array is None:
            return None
        # a large table is not held twice
        return array.tobytes() if array.nbytes <= 64 else hashlib.blake2b(np.ascontiguousarray(array).data).digest()


Weights = tuple[tuple[int, ...], ...]  # of the states of several variables; the least of each is 0


@dataclass(frozen=True)
class Sums:
    """The sums over free variables that some model allows: from ``lower`` to ``upper``, and where there is a modulus or
    there are gaps, those whose entry is in ``allowed``."""

    lower: int
    upper: int
    offset: int  # the sum of the fixed variables
    modulus: int  # 0: none
    allowed: bytes | None  # a bool for each entry; None: all

    def entries(self, sums: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the potential of each sum is, among those of all sums."""
        sums = sums + self.offset
        return sums % self.modulus if self.modulus else sums

    def allow(self, sums: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each sum is allowed."""
        inside = (sums >= self.lower) & (sums <= self.upper)
        if self.allowed is None:
            return inside
        allowed = np.frombuffer(self.allowed, dtype=np.bool_)
        return inside & allowed[self.entries(np.where(inside, sums, self.lower))]


@lru_cache(maxsize=4096)
def interval(lower: int, upper: int, offset: int = 0) -> Sums:
    """All sums between two; one object for all equal ones, since there may be thousands."""
    return Sums(lower, upper, offset, 0, None)


@dataclass(frozen=True)
class Limit:
    """A counter over free variables. Its ``source`` has a potential for every sum. If it is ``plain``, that is 0 for
    all allowed sums in every model; lists contain only allowed sums and do not need it.
    """

    scope: tuple[int, ...]
    weights: Weights | None  # by variable; None: 0 and 1
    total: int  # the largest sum
    sums: Sums
    source: Source
    plain: bool


def sum_up(weights: Weights) -> NDArray[np.int64]:
    """The sum of every joint state, with one axis per variable."""
    total = np.zeros((), dtype=np.int64)
    for w in weights:
        total = total[..., None] + np.array(w)
    return total


def ones(count: int) -> Weights:
    """The weights of binary variables whose ones are counted."""
    return ((0, 1),) * count


@dataclass(frozen=True, eq=False)
class Problem:
    """Free variables are 0..F-1; variables from F on are auxiliary (counters) and not part of the answer."""

    cardinalities: tuple[int, ...]
    variables: NDArray[np.int64]  # shape: (F,), the model's number of each free variable
    states: NDArray[np.int64]  # shape: (F, K), the model's number of each live state, in order
    fixed: NDArray[np.int64]  # shape: (N,), the state of each fixed variable, -1 where free
    relations: tuple[Relation, ...]
    limits: tuple[Limit, ...]
    constants: tuple[tuple[Source, int], ...]  # entries that are part of every feasible assignment


def free_problem(structure: AllowedStates, live: NDArray[np.bool_]) -> Problem:
    """Remove the states that propagation excluded and the variables it fixed."""
    r = _Reduction(structure, live)
    return Problem(r.cards, r.variables, r.states, r.fixed, tuple(r.relations), tuple(r.limits), tuple(r.constants))


class _Reduction:
    """Collects the factors over free variables, and the constants from fixed ones."""

    def __init__(self, structure: AllowedStates, live: NDArray[np.bool_]) -> None:
        self.live, counts = live, live.sum(1)
        self.fixed = np.where(counts == 1, live.argmax(1), -1)
        self.variables = np.flatnonzero(counts > 1)
        self.number = np.full(len(live), -1)
        self.number[self.variables] = np.arange(len(self.variables))
        # Live states first, in order: a live state's index in its row is its number among the live ones.
        free = live[self.variables]
        every = np.arange(live.shape[1])
        self.states = np.tile(every, (len(free), 1)) if free.all() else np.argsort(~free, axis=1, kind="stable")
        self.cards = tuple(counts[self.variables].tolist())
        self.whole = counts == structure.cardinalities  # variables that keep all states
        self.relations: list[Relation] = []
        self.limits: list[Limit] = []
        self.constants = [(Source("unary", 0, int(i)), int(self.fixed[i])) for i in np.flatnonzero(self.fixed >= 0)]
        for f, i in enumerate(self.variables.tolist()):
            cells = None if self.whole[i] else self.states[f, : counts[i]]
            self.relations.append(Relation((f,), None, Source("unary", 0, i), cells))
        for g, table in enumerate(structure.tables):
            self._add_tables(g, table)
        for g, group in enumerate(structure.counters):
            self._add_counters(g, group)

    def _add_tables(self, group: int, table: TableShape) -> None:
        number, shape = self.number, table.allowed.shape[1:]
        all_allowed = np.asarray(table.allowed.reshape(len(table.scopes), -1).all(1))
        unchanged = np.asarray(self.whole[table.scopes].all(1))
        for c, scope in enumerate(table.scopes.tolist()):
            source = Source("table", group, c)
            if unchanged[c] and (number[scope] >= 0).all():
                allowed = None if all_allowed[c] else table.allowed[c]
                self.relations.append(Relation(tuple(number[scope].tolist()), allowed, source, None))
                continue
            live = np.ix_(*(np.flatnonzero(self.live[i, :k]) for i, k in zip(scope, shape, strict=True)))
            free = [a for a, i in enumerate(scope) if number[i] >= 0]
            sizes = [live[a].size for a in free]
            cells = np.arange(int(np.prod(shape))).reshape(shape)[live].reshape(sizes)
            if not free:
                self.constants.append((source, int(cells)))
                continue
            allowed = table.allowed[c][live].reshape(sizes)
            free_scope = tuple(int(number[scope[a]]) for a in free)
            self.relations.append(Relation(free_scope, None if allowed.all() else allowed, source, cells))

    def _add_counters(self, group: int, shape: CounterShape) -> None:
        counter = shape.counter
        fixed_ones = (self.fixed[shape.scopes] == 1).sum(1) if counter.counts_ones else None
        numbers = self.number[shape.scopes].tolist()
        for c, scope in enumerate(shape.scopes.tolist()):
            if fixed_ones is not None:
                offset, weights = int(fixed_ones[c]), None
                free = tuple([f for f in numbers[c] if f >= 0])
                total = len(free)
            else:
                free, weights, offset = self._live_weights(scope, counter.weights)
                total = sum(map(max, weights))
            source, plain = Source("sum", group, c), bool(shape.plain[c])
            allowed = None if shape.allowed is None else shape.allowed[c]
            bounds = int(shape.lower[c]), int(shape.upper[c])
            sums = _sums_over_free(bounds, offset, total, counter.modulus, allowed)
            if not free:
                if not plain or not sums.allow(np.array(0)):
                    self.constants.append((source, int(sums.entries(np.array(0)))))
            elif not plain or sums.lower > 0 or sums.upper < total or sums.allowed is not None:
                binary = weights is None or all(w == (0, 1) for w in weights)
                self.limits.append(Limit(free, None if binary else weights, total, sums, source, plain))

    def _live_weights(self, scope: list[int], weights: Weights) -> tuple[tuple[int, ...], Weights, int]:
        """The variables that change the sum, their weights above the least, and the sum of what is the same for all."""
        free, above, offset = [], [], 0
        for i, w in zip(scope, weights, strict=True):
            own = [w[s] for s in np.flatnonzero(self.live[i, : len(w)])]
            least = min(own)
            offset += least
            if max(own) > least:
                free.append(int(self.number[i]))
                above.append(tuple(v - least for v in own))
        return tuple(free), tuple(above), offset


def _sums_over_free(
    bounds: tuple[int, int], offset: int, total: int, modulus: int, allowed: NDArray[np.bool_] | None
) -> Sums:
    """The allowed sums of free variables, which are at most ``total``, from those of all variables."""
    if modulus:
        assert allowed is not None
        return Sums(0, total, offset, modulus, None if allowed.all() else allowed.tobytes())
    lower, upper = max(0, bounds[0] - offset), min(total, bounds[1] - offset)
    gaps = allowed is not None and not allowed[lower + offset : upper + offset + 1].all()
    if allowed is None or not gaps:
        return interval(lower, upper, offset)
    return Sums(lower, upper, offset, 0, allowed.tobytes())
