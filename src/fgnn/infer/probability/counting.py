"""Weighted counting of the solutions of clauses, by search with components that are remembered.

Constraints alone can be far wider than elimination allows, and yet leave little to search: a value propagates, and
what remains falls apart into components that occur again and again (as in Cachet and sharpSAT).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.exact.dense_sums import has_numba
from fgnn.infer.exact.order import OutOfTime, graph_of, min_fill
from fgnn.infer.probability.result import Beliefs
from fgnn.pgm import ModelBatch
from fgnn.runtime.jit import Background

# Of the time, to wait for compiled loops: the first time they compile for seconds.
LOADING = 0.5
# Forbidden entries of a table; more are not clauses but a table.
_MOST_CLAUSES = 64
# Variables whose values are propagated before one is chosen.
_PROBES = 12
# Weight of the place in an elimination order, against the number of short clauses.
_PRIOR = 1.0
_MOST_ORDERED = 1000  # variables; an order of more takes too long
# Entries of all remembered components, in bytes.
_CACHE_BYTES = 1 << 30
_IMPOSSIBLE = -1 - (1 << 30)


@dataclass(frozen=True, eq=False)
class Clauses:
    """A model of binary variables whose tables only forbid: weights of literals, and clauses."""

    weight: NDArray[np.float64]  # shape: (2 N,), log
    constant: float
    literals: NDArray[np.int32]
    starts: NDArray[np.int64]

    @property
    def of_literal(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Where the clauses of each literal begin, and the clauses."""
        owner = np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))
        order = np.argsort(self.literals, kind="stable")
        counts = np.bincount(self.literals, minlength=len(self.weight))
        return np.concatenate([[0], np.cumsum(counts)]), owner[order]


def as_clauses(batch: ModelBatch) -> Clauses | None:
    """The clauses of a single model; None if it is not one of binary variables and constraints."""
    if len(batch) != 1 or len(batch.factors) > len(batch.tables) or int(batch.cardinalities.max()) > 2:
        return None
    unary = batch.unary[0].detach().cpu().double().numpy()
    single = np.flatnonzero(batch.cardinalities.cpu().numpy() == 1)
    constant, found = float(batch.constant[0]), []
    for t in batch.tables:
        values = t.values[0].detach().cpu().double().numpy()  # shape: (C, 2, ..., 2)
        if set(values.shape[1:]) != {2}:
            return None
        flat = values.reshape(len(values), -1)
        top = flat.max(1)
        forbidden = flat == -np.inf
        if not (forbidden | (flat == top[:, None])).all() or forbidden.sum(1).max(initial=0) > _MOST_CLAUSES:
            return None
        if (top == -np.inf).any():
            return None
        constant += float(top.sum())
        digits = np.array(list(itertools.product((0, 1), repeat=values.ndim - 1)))
        scopes = t.scopes.cpu().numpy()
        for c, entry in np.argwhere(forbidden).tolist():
            found.append(2 * scopes[c] + 1 - digits[entry])  # some variable has another state
    for i, s in np.argwhere(unary == -np.inf).tolist():
        if s == 0 or i not in single:
            found.append(np.array([2 * i + 1 - s]))
    lengths = [len(clause) for clause in found]
    literals = np.concatenate(found).astype(np.int32) if found else np.zeros(0, np.int32)
    weight = np.full((len(unary), 2), -np.inf)
    weight[:, : unary.shape[1]] = np.where(np.isinf(unary), 0.0, unary)
    weight[single, 1] = -np.inf
    return Clauses(weight.reshape(-1), constant, literals, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def log_z_by_counting(batch: ModelBatch, time_limit: float | None) -> Beliefs | None:
    """log Z of a model of clauses; None if it is another one, or time or memory ran out."""
    if not has_numba():
        return None
    deadline = math.inf if time_limit is None else time.perf_counter() + time_limit
    clauses = as_clauses(batch)
    if clauses is None or not LOOPS.wait(LOADING * (deadline - time.perf_counter())):
        return None
    try:
        value = _Counter(clauses, deadline).log_count()
    except (OutOfTime, MemoryError, RecursionError):
        return None
    empty = batch.unary.new_zeros(len(batch), 0, 0)
    log_z = torch.tensor([value + clauses.constant], dtype=torch.float64, device=batch.device)
    return Beliefs.of(empty, log_z, exact=True, method="counting")


def _check(deadline: float) -> None:
    if time.perf_counter() > deadline:
        raise OutOfTime


def _late_elimination(clauses: Clauses, deadline: float) -> NDArray[np.float64]:
    """A preference for variables that a good elimination order leaves to the end: setting them splits what remains."""
    n = len(clauses.weight) // 2
    if n > _MOST_ORDERED:
        return np.zeros(n)
    scopes = [(row >> 1).tolist() for row in np.split(clauses.literals, clauses.starts[1:-1])]
    order = min_fill(graph_of(n, scopes), check=partial(_check, deadline))
    prior = np.zeros(n)
    prior[list(order.sequence)] = _PRIOR * np.arange(n) / max(1, n)
    return prior


class _Counter:
    """The search. ``value`` of a component is the log of the weighted number of its solutions."""

    def __init__(self, clauses: Clauses, deadline: float) -> None:
        from fgnn.infer.probability import clause_kernels

        self.kernels = clause_kernels
        self.weight = clauses.weight
        first, of_literal = clauses.of_literal
        self.structure = (clauses.literals, clauses.starts, first, of_literal)
        n = len(self.weight) // 2
        self.both = np.logaddexp(self.weight[0::2], self.weight[1::2])
        self.state = np.full(n, -1, np.int8)
        self.trail = np.zeros(n + 1, np.int64)
        self.size = 0
        self.seen, self.mark = np.zeros(n, np.int64), np.zeros(max(1, len(clauses.starts) - 1), np.int64)
        self.prior, self.score = _late_elimination(clauses, deadline), np.zeros(n)
        self.stamp = 0
        self.known: dict[bytes, float] = {}
        self.room = _CACHE_BYTES
        self.deadline = deadline

    def log_count(self) -> float:
        literals, starts = self.structure[:2]
        for clause in range(len(starts) - 1):
            if starts[clause + 1] - starts[clause] == 1:
                fits, self.size = self._assign(int(literals[starts[clause]]))
                if not fits:
                    return -math.inf
        total = float(self.weight[self.trail[: self.size]].sum())
        return total + self._rest(np.arange(len(self.state), dtype=np.int32))

    def _assign(self, literal: int) -> tuple[bool, int]:
        return self.kernels.assign(literal, self.state, self.trail, self.size, *self.structure)

    def _rest(self, variables: NDArray[np.int32]) -> float:
        """The value of the unset ones of some variables, component by component."""
        self.stamp += 1
        members, ends, active, clause_ends = self.kernels.components(
            variables, self.state, *self.structure, self.seen, self.mark, self.stamp
        )
        total, at, clause_at, parts = 0.0, 0, 0, []
        for end, clause_end in zip(ends.tolist(), clause_ends.tolist(), strict=True):
            if clause_end == clause_at:  # in no clause that is left
                total += float(self.both[members[at]])
            else:
                parts.append((members[at:end], active[clause_at:clause_end]))
            at, clause_at = end, clause_end
        # Small components first: if one has no solution, the others need not be counted.
        for own, clauses in sorted(parts, key=lambda part: len(part[0])):
            total += self._component(own, clauses)
            if total == -math.inf:
                break
        return total

    def _component(self, members: NDArray[np.int32], active: NDArray[np.int32]) -> float:
        key = np.sort(members).tobytes() + b"|" + np.sort(active).tobytes()
        value = self.known.get(key)
        if value is not None:
            return value
        _check(self.deadline)
        value = self._branch(members, active)
        self.room -= len(key) + 100
        if self.room < 0:  # forget everything rather than grow
            self.known.clear()
            self.room = _CACHE_BYTES
        self.known[key] = value
        return value

    def _branch(self, members: NDArray[np.int32], active: NDArray[np.int32]) -> float:
        literal = int(
            self.kernels.branch(
                members, active, self.state, self.trail, self.size, *self.structure, self.prior, self.score, _PROBES
            )
        )
        if literal == _IMPOSSIBLE:
            return -math.inf
        choices: Sequence[int] = (literal, literal ^ 1) if literal >= 0 else (~literal,)
        total = -math.inf
        for choice in choices:
            before = self.size
            fits, after = self._assign(int(choice))
            self.size = after
            if fits:
                gained = float(self.weight[self.trail[before:after]].sum())
                total = float(np.logaddexp(total, gained + self._rest(members))) if gained > -math.inf else total
            self.kernels.retract(self.state, self.trail, after, before)
            self.size = before
        return total


def _warm_up() -> None:
    # Two components, one of which needs a choice.
    literals, starts = np.array([0, 2, 1, 3, 4, 6], np.int32), np.array([0, 2, 4, 6], np.int64)
    counter = _Counter(Clauses(np.zeros(8), 0.0, literals, starts), math.inf)
    counter.log_count()
    order, empty, rng = np.arange(4), np.zeros(0), np.random.default_rng(0)
    counter.kernels.sample_solutions(
        np.full(4, 0.5), order, counter.weight, counter.state, counter.trail, 0, *counter.structure, 1, rng,
        empty, np.zeros((0, 4), np.int8), np.zeros(4),
    )  # fmt: skip


LOOPS = Background(_warm_up)
