"""Descent on the dual of one model: sweeps, roundings, and clusters where sweeps stall."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.certificate import proof_tolerance
from fgnn.infer.dual.clusters import Cycle, cycles, gains
from fgnn.infer.dual.from_ad3 import ad3_multipliers
from fgnn.infer.dual.layout import Layout
from fgnn.infer.reporter import Reporter
from fgnn.pgm import ModelBatch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CHUNK = 4_000_000  # numbers visited between two looks at the clock
_ROUND = 5  # sweeps between two roundings
_STALLED = 1e-3  # improvement of the bound per sweep, relative to the gap, below which clusters are added
_NEW = 0.2  # clusters added at a time, as a share of the candidates
_AD3, _FIND = 0.25, 0.1  # shares of the time left: for AD3, and to find cycles
_CLOSE, _ROUNDING = 1e-4, 1e-14  # relative to the scale: a gap that may close, and a step that is rounding
_EPSILON = 2.0**-52


@dataclass(eq=False)
class Descent:
    """Descent on the dual of one model in standard form.

    Attributes:
        states: The best assignment so far.
        score: Its standard score.
        bound: The lowest bound so far.
    """

    batch: ModelBatch  # one model
    layout: Layout
    reporter: Reporter
    bound: float = 0.0  # no standard score is above 0
    score: float = -math.inf
    sweeps: int = 0
    clusters: int = 0
    converged: bool = False
    timed_out: bool = False
    states: Ints = field(init=False)

    def __post_init__(self) -> None:
        batch = self.batch
        self.states = batch.unary[0].argmax(1).numpy()
        parts = [batch.unary[0][batch.state_mask].double().numpy()]
        parts += [t.values[0].double().reshape(-1).numpy() for t in batch.tables]
        self._original: Floats = np.concatenate(parts)
        self._theta = self._original.copy()
        self._counters = self.layout.counters.of_model(batch)
        self._delta: Floats = np.zeros(self.layout.num_deltas)
        self._candidates: list[Cycle] | None = None
        self._relaxed = False  # whether AD3 has run
        finite = self._original[np.isfinite(self._original)]
        self._scale = float(-finite.sum() / max(1, len(finite))) * self.layout.num_nodes or 1.0
        self._constant = float(batch.constant[0])
        self._deadline = math.inf
        self._prepare()

    def run(self, deadline: float, iterations: int, tolerance: float, *, tighten: bool) -> None:
        """Sweep until the bound meets the score, nothing helps any more, or the time is over."""
        self._deadline = deadline
        proof = proof_tolerance(self.batch) / 2
        while self.sweeps < iterations:
            before = self.bound
            if not self._sweep():
                self.timed_out = True
                return
            self.sweeps += 1
            if not self._lower_bound():
                self.timed_out = True
                return
            if self.bound == -math.inf:
                self.converged = True
                return
            if self.sweeps % _ROUND == 1:
                self._round()
            if self.reporter.due():
                self._report()
            if self.score > -math.inf and self.bound - self.score <= proof * -self.score:
                self.converged = True
                return
            fallen = before - self.bound
            gap = self.bound - self.score if self.score > -math.inf else self._scale
            close = gap <= _CLOSE * self._scale  # a proof is near, which needs every digit
            least = (_ROUNDING if close else tolerance) * self._scale
            if self.sweeps > 3 and fallen <= max(_STALLED * gap, least):
                if not self._relaxed:
                    self._relax()
                    continue
                added = tighten and self._add_clusters(tolerance)
                if not added and fallen <= least:
                    self.converged = True
                    break
        self._round()

    # ---- sweeps -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Buffers, and the nodes to visit in pieces that take little time each."""
        layout = self.layout
        sizes = np.diff(layout.start)
        parents = np.diff(layout.up_start)
        self._hat: Floats = np.empty(int(sizes.max(initial=2)))
        self._maxima: Floats = np.empty(int((parents * sizes).max(initial=2)))
        lengths = np.diff(layout.counters.start)
        self._gains: Floats = np.empty(int(lengths.max(initial=1)))
        count = layout.num_nodes + len(lengths)
        self._values, self._sizes = np.empty(count), np.empty(count)
        work = np.zeros(layout.num_nodes, np.int64)
        of_node = layout.parent >= 0
        np.add.at(work, layout.child[of_node], sizes[layout.parent[of_node]])
        counters = layout.counters
        visits = np.where(counters.sums > 0, 6 * counters.sums, 4 * lengths)
        np.add.at(work, layout.child[~of_node], visits[-1 - layout.parent[~of_node]])
        # The first variable of a counter in a sweep, at either end, pays for the sums ahead.
        owner, members = np.repeat(np.arange(len(lengths)), lengths), layout.child[counters.edges]
        states = np.bincount(owner, sizes[members], len(lengths)).astype(np.int64)
        place = counters.place[counters.edges]
        for end in (place == 0, place == lengths[owner] - 1):
            np.add.at(work, members[end], (states * counters.sums)[owner[end]])
        pieces = np.cumsum(np.where(counters.sums > 0, states * counters.sums, 4 * lengths)) // _CHUNK
        limits = [0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(lengths)]
        self._pieces = list(pairwise(limits)) if len(lengths) else []
        variables = np.arange(layout.num_variables)
        within = np.arange(layout.num_variables, layout.num_variables + layout.num_tables)
        clustered = within[parents[within] > 0]
        passes = [(variables, True), (clustered, True)]
        passes += [(nodes[::-1].copy(), False) for nodes, _ in passes]
        self._passes = [
            (part, forward)
            for nodes, forward in passes
            for part in np.split(nodes, np.flatnonzero(np.diff(np.cumsum(work[nodes]) // _CHUNK)) + 1)
            if len(part)
        ]

    def _sweep(self) -> bool:
        """One sweep forward and one backward; False if the time is over before its end."""
        from fgnn.infer.dual.kernels import sweep

        x = self.layout
        for nodes, forward in self._passes:
            if time.perf_counter() >= self._deadline:
                return False
            sweep(
                nodes, forward, self._theta, self._delta, x.forward if forward else x.backward, x.start, x.parent,
                x.child, x.delta, x.projection, x.projections, x.up_start, x.up, self._counters, self._maxima,
                self._hat, self._gains,
            )  # fmt: skip
        return True

    def _in_time(self) -> Iterator[tuple[int, int]]:
        """The counters in pieces (first, last), until the time is over; the first piece in any case."""
        for first, last in self._pieces:
            if first and time.perf_counter() >= self._deadline:
                return
            yield first, last

    def _lower_bound(self) -> bool:
        """Lower the bound to the value of the dual, if that is lower: computed from the model itself, and rigorous.

        False if the time is over before all counters are added up.
        """
        from fgnn.infer.dual.kernels import counter_bounds, node_bounds

        x = self.layout
        node_bounds(
            self._theta, self._original, self._delta, x.start, x.child, x.delta, x.projection, x.projections,
            x.up_start, x.up, x.down_start, x.down, self._values, self._sizes,
        )  # fmt: skip
        done = 0
        for first, done in self._in_time():
            counter_bounds(
                first, done, self._theta, self._delta, x.start, x.child, x.delta, self._counters, self._gains,
                self._values, self._sizes,
            )  # fmt: skip
        if done < len(self._counters.sums):
            return False
        if self._constant == -math.inf or bool((self._values == -np.inf).any()):
            self.bound = -math.inf
            return True
        total = math.fsum(self._values)
        error = _EPSILON * (math.fsum(self._sizes) + 2 * abs(total))
        self.bound = min(self.bound, total + error)
        return True

    # ---- assignments --------------------------------------------------------------------------------------

    def _round(self) -> None:
        """Take each variable's best state, and round in the order of the variables and in reverse; keep the best."""
        from fgnn.infer.dual.kernels import fill_some, round_states

        x = self.layout
        order = np.arange(x.num_variables)
        self.offer(_best_states(x.start[: x.num_variables + 1], self._theta))
        for forward in (True, False):
            if time.perf_counter() >= self._deadline:
                return
            done = 0
            for first, done in self._in_time():
                fill_some(
                    first, done, forward, self._theta, self._delta, x.start, x.child, x.delta, self._counters
                )  # fmt: skip
            if done < len(self._counters.sums):
                return
            states = np.empty(x.num_variables, np.int64)
            round_states(
                order if forward else order[::-1].copy(), forward, self._theta, self._original, self._delta, x.start,
                x.parent, x.delta, x.projection, x.projections, x.up_start, x.up, x.down_start, x.down, x.child,
                self._counters, states, self._hat,
            )  # fmt: skip
            self.offer(states)

    def offer(self, states: Ints) -> None:
        """Keep an assignment if it is the best."""
        score = float(self.batch.score(torch.from_numpy(states)[None])[0])
        if score > self.score or self.score == -math.inf == score:
            self.states, self.score = states, score

    def _report(self) -> None:
        note = f"sweep {self.sweeps}" + (f", {self.clusters:,} clusters" if self.clusters else "")
        self.reporter.send(note, self.score, self.bound, torch.from_numpy(self.states)[None])

    # ---- other multipliers --------------------------------------------------------------------------------

    def _relax(self) -> None:
        """Continue from AD3's multipliers if they give a lower bound; it gets a quarter of the time left."""
        self._relaxed = True
        now = time.perf_counter()
        delta = ad3_multipliers(self.batch, self.layout, now + _AD3 * (self._deadline - now))
        if delta is None:
            return
        before, theta, previous = self.bound, self._theta, self._delta
        self._delta, x = delta, self.layout
        self._theta = np.where(theta == -np.inf, -np.inf, self._original)
        place, owner = _spans(x.delta, np.diff(x.start)[x.child])
        np.subtract.at(self._theta, x.start[x.child][owner] + place, delta)
        edges = np.flatnonzero(x.parent >= 0)
        cell, owner = _spans(edges, np.diff(x.start)[x.parent[edges]])
        edge = edges[owner]
        moved = delta[x.delta[edge] + x.projections[x.projection[edge] + cell]]
        np.add.at(self._theta, x.start[x.parent[edge]] + cell, moved)
        self._lower_bound()
        if not self.bound < before:
            self._theta, self._delta = theta, previous

    # ---- clusters -----------------------------------------------------------------------------------------

    def _add_clusters(self, tolerance: float) -> bool:
        """Add the cycles that lower the dual most; False if none lowers it."""
        if self._candidates is None:
            now = time.perf_counter()
            self._candidates = cycles(self.layout, now + _FIND * (self._deadline - now))
        if not self._candidates:
            return False
        gain = gains(self.layout, self._theta, self._candidates)
        most = max(16, math.ceil(_NEW * len(gain)))
        chosen = [c for c in np.argsort(-gain, kind="stable")[:most].tolist() if gain[c] > tolerance]
        if not chosen:
            return False
        picked, taken = [self._candidates[c] for c in chosen], set(chosen)
        self._candidates = [c for n, c in enumerate(self._candidates) if n not in taken]
        self.layout = self.layout.with_clusters([scope for scope, _ in picked], [tables for _, tables in picked])
        grown = np.zeros(int(self.layout.start[-1]) - len(self._theta))
        self._theta, self._original = np.concatenate([self._theta, grown]), np.concatenate([self._original, grown])
        self._delta = np.concatenate([self._delta, np.zeros(self.layout.num_deltas - len(self._delta))])
        self.clusters += len(picked)
        self._prepare()
        return True


def _spans(items: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """For every place of every item in turn: its number within the item, and the item's index."""
    owner = np.repeat(np.arange(len(items)), lengths)
    return np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths), owner


def _best_states(start: Ints, theta: Floats) -> Ints:
    """The state of each variable with the largest number, the lowest on ties."""
    sizes = np.diff(start)
    most = np.maximum.reduceat(theta[: start[-1]], start[:-1])
    best = np.flatnonzero(theta[: start[-1]] == np.repeat(most, sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)[best]
    _, first = np.unique(owner, return_index=True)
    return np.asarray(best[first] - start[:-1], dtype=np.int64)
