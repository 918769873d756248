r"""Counters in the linear program: the convex hull of a factor that depends on a sum, as a flow over partial sums.

A joint state is a path: before variable m the sum so far is t, and state s leads on to :math:`t + w_m(s)`. Flows
:math:`f_m(t, s) \ge 0` of value 1 are means of paths, so

.. math:: \sum_t f_m(t, s) = p_m(s), \qquad \sum_{t, s : t + w_m(s) = t'} f_m(t, s) = \sum_s f_{m + 1}(t', s)

describe the hull with O(n · range) columns. The last arcs carry the log-potentials of the sums that they reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.pgm import ModelBatch
from fgnn.pgm.factors import Counter
from fgnn.pgm.group_batches import CountedBatch

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Flows:
    """Rows and columns of all counters except those expressed as bounds, see `bounds_are_hull`."""

    equal: Any  # CSC, shape: (rows, columns of variables + arcs)
    equal_to: Floats
    reached: Ints  # shape: (arcs,), the place among all numbers by sum that a last arc reaches; -1 for other arcs

    def numbers(self, batch: ModelBatch) -> Floats:
        """The log-potentials of the arcs.  # shape: (B, arcs)"""
        each = (f.by_sum(torch.float64).expand(len(batch), -1, -1) for f in flowing(batch))
        by_sum = np.concatenate([np.zeros((len(batch), 0)), *(x.flatten(1).cpu().numpy() for x in each)], 1)
        inner = np.zeros((len(batch), 1))
        return np.concatenate([by_sum, inner], 1)[:, self.reached]


def bounds_are_hull(f: CountedBatch) -> bool:
    """Whether bounds on the sum of marginals describe the convex hull, so that one row is enough."""
    return f.counter is not None and f.counter.counts_variables and f.bounds() is not None


def flowing(batch: ModelBatch) -> list[CountedBatch]:
    """The counters that need a flow."""
    return [f for f in batch.counted if not bounds_are_hull(f)]


def most_arcs(batch: ModelBatch) -> int:
    """How many arcs there are at most."""
    return sum(len(f.scopes) * sum(f.shape) * len(f.counter.entries) for f in flowing(batch) if f.counter is not None)


def flow_rows(batch: ModelBatch, first: Ints) -> Flows:
    """The flows of a batch, where ``first`` has the column of each variable's state 1."""
    from scipy import sparse

    width = int(first[-1])
    build = _Builder(width)
    for f in flowing(batch):
        assert f.counter is not None
        possible = (f.by_sum(torch.float64) > -torch.inf).any(0).cpu().numpy()  # shape: (C, T)
        build.add(f.counter, f.scopes.cpu().numpy(), possible, first)
    rows, columns, sources, reached = map(np.concatenate, (build.rows, build.columns, build.sources, build.reached))
    # Rows without arcs say nothing, but for those of sources: a factor that allows nothing has no flow.
    used, row = np.unique(np.concatenate([rows, sources]), return_inverse=True)
    equal_to = np.zeros(len(used))
    equal_to[row[len(rows) :]] = 1.0
    entries = (np.concatenate(build.values), (row[: len(rows)], columns))
    equal = sparse.csc_array(entries, shape=(len(used), width + len(reached)))
    return Flows(equal, equal_to, reached)


class _Builder:
    """Entries of rows and columns, group by group."""

    def __init__(self, width: int) -> None:
        none = np.zeros(0, np.int64)
        self.rows, self.columns, self.sources, self.reached = [none], [none], [none], [none]
        self.values = [np.zeros(0)]
        self.height = self.sums = 0
        self.width = width

    def add(self, counter: Counter, scopes: Ints, possible: Bools, first: Ints) -> None:
        """Add C factors over the variables ``scopes`` (C, n) with sums that are ``possible`` (C, T)."""
        (count, n), total = scopes.shape, possible.shape[1]
        leads_to = [_leads_to(counter, m, total) for m in range(n)]
        ahead: list[Bools] = [
            possible
        ]  # from which sums a possible one can be reached, from the last variable to the first
        for to in reversed(leads_to):
            ahead.append(np.any(ahead[-1][:, to.clip(min=0)] & (to >= 0), axis=2))
        so_far = np.arange(total) == 0
        node = self.height  # of factor c before variable m with sum t: node + (c n + m) T + t
        link = node + count * n * total
        for m, to in enumerate(leads_to):
            arcs = so_far[:, None] & (to >= 0) & ahead[n - 1 - m][:, to.clip(min=0)]
            c, t, s = np.nonzero(arcs)
            end = to[t, s]
            column = self.width + np.arange(len(c))
            self.width += len(c)
            self._put(node + (c * n + m) * total + t, column, 1.0 if m == 0 else -1.0)
            if m < n - 1:
                self._put(node + (c * n + m + 1) * total + end, column, 1.0)
            chosen = s > 0
            self._put(link + s[chosen] * count + c[chosen], column[chosen], 1.0)
            for state in range(1, to.shape[1]):
                self._put(link + state * count + np.arange(count), first[scopes[:, m]] + state - 1, -1.0)
            link += to.shape[1] * count
            self.reached.append(self.sums + c * total + end if m == n - 1 else np.full(len(c), -1))
            so_far = np.isin(np.arange(total), to[so_far])
        self.sources.append(node + np.arange(count) * n * total)
        self.height, self.sums = link, self.sums + count * total

    def _put(self, rows: Ints, columns: Ints, value: float) -> None:
        self.rows.append(rows)
        self.columns.append(columns)
        self.values.append(np.full(len(rows), value))


def _leads_to(counter: Counter, m: int, total: int) -> Ints:
    """The sum after variable m, by the sum before and by state; -1 beyond the largest.  # shape: (T, k)"""
    after = np.arange(total)[:, None] + np.array(counter.weights[m], np.int64)
    return after % total if counter.modulus else np.where(after < total, after, -1)
