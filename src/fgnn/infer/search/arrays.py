"""One model as flat arrays, the form that compiled loops read.

A factor is a *table*, or a *counter*: a function of one integer, the sum of a weight per member,

.. math:: \\theta_c(x_c) = g_c \\Big( \\sum_{i \\in s(c)} w_{ci}(x_i) \\Big) .

Sums are plain ones: a modulus is written out. Forbidden entries become finite penalties, so that a search may pass
through infeasible assignments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fgnn.graph import Structure
from fgnn.infer.counted import Weights, counters, distances, num_sums, scores_by_sum
from fgnn.pgm import ModelBatch

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LARGE = 48  # counters over more variables form no clique in `neighbours`: a subgraph frees a few members


class Arrays(NamedTuple):
    """A model of N variables. Members are those of tables first, in `members`, then of counters, in `counted`."""

    cards: Ints  # shape: (N,)
    states: Ints  # shape: (N + 1,), where the states of each variable start
    unary: Floats  # shape: (sum of cards,)
    # tables: members[first[f]:first[f + 1]] with strides, entries values[cell[f]:]
    first: Ints  # shape: (F + 1,)
    members: Ints
    strides: Ints
    cell: Ints  # shape: (F + 1,)
    values: Floats
    # the tables of each variable: table[tables[i]:tables[i + 1]], and its stride there
    tables: Ints  # shape: (N + 1,)
    table: Ints
    stride: Ints
    # counters: counted[count_first[c]:count_first[c + 1]]; member m weighs weights[weight[m] + state]
    count_first: Ints  # shape: (C + 1,)
    counted: Ints
    weight: Ints
    weights: Ints
    total: Ints  # shape: (C + 1,), where the scores of each sum start in sums
    sums: Floats
    # the counters of each variable, and where its weights start there
    counters: Ints  # shape: (N + 1,)
    counter: Ints
    own_weight: Ints
    # the large counters of each variable
    large: Ints  # shape: (N + 1,)
    large_counter: Ints
    # variables that share a table or a small counter
    neighbours: Ints  # shape: (N + 1,)
    neighbour: Ints


@dataclass(frozen=True, eq=False)
class Layout:
    """What the arrays of all models of a structure have in common."""

    fields: dict[str, Ints]

    @classmethod
    def of(cls, structure: Structure, shapes: tuple[tuple[int, ...], ...], totals: tuple[int, ...]) -> Layout:
        """Lay out tables of the given shapes, by group, and then counters of so many sums."""
        assert structure.cardinalities is not None
        cards = structure.cardinalities.cpu().numpy().astype(np.int64)
        count = len(cards)
        scopes = [group.scopes.cpu().numpy() for group in structure.groups.values()]
        tables, counters = scopes[: len(shapes)], scopes[len(shapes) :]
        sizes = [int(np.prod(shape)) for shape in shapes]
        strides = [np.array([int(np.prod(shape[a + 1 :])) for a in range(len(shape))]) for shape in shapes]
        first = _starts(_joined([np.full(len(s), s.shape[1]) for s in tables]))
        members = _joined([s.reshape(-1) for s in tables])
        stride = _joined([np.tile(t, len(s)) for s, t in zip(tables, strides, strict=True)])
        cell = _starts(_joined([np.full(len(s), n) for s, n in zip(tables, sizes, strict=True)]))
        count_first = _starts(_joined([np.full(len(s), s.shape[1]) for s in counters]))
        counted = _joined([s.reshape(-1) for s in counters])
        weight = _starts(cards[counted])[:-1]
        fields: dict[str, Ints] = {
            "cards": cards,
            "states": _starts(cards),
            "first": first,
            "members": members,
            "strides": stride,
            "cell": cell,
            "count_first": count_first,
            "counted": counted,
            "weight": weight,
            "total": _starts(_joined([np.full(len(s), total) for s, total in zip(counters, totals, strict=True)])),
        }
        fields["tables"], fields["table"], slots = _incidence(members, first, count)
        fields["stride"] = stride[slots]
        fields["counters"], fields["counter"], slots = _incidence(counted, count_first, count)
        fields["own_weight"] = weight[slots]
        large = np.diff(count_first)[fields["counter"]] > LARGE
        fields["large"] = _starts(large)[fields["counters"]]
        fields["large_counter"] = fields["counter"][large]
        cliques = tables + [s for s in counters if s.shape[1] <= LARGE]
        fields["neighbours"], fields["neighbour"] = adjacency(cliques, count)
        return cls(fields)

    @classmethod
    def of_batch(cls, batch: ModelBatch) -> Layout:
        """That of a batch's structure, laid out once."""
        shapes = tuple(t.shape for t in batch.tables)
        totals = tuple(num_sums(counter) for _, counter in counters(batch))
        layout: Layout = batch.structure.derived(
            ("search", shapes, totals), lambda: cls.of(batch.structure, shapes, totals)
        )
        return layout


def arrays_of(batch: ModelBatch, b: int) -> tuple[Arrays, Floats, Floats]:
    """Model ``b`` of a batch, with -inf for what is forbidden, and how far each entry of `values` and `sums` is from
    allowed: 0 or 1 for tables, for counters the distance to the nearest allowed sum, in typical weights."""
    batch = batch.select(slice(b, b + 1))
    unary = _array(batch.unary[0][batch.state_mask])
    values = np.concatenate([_array(t.values[0].reshape(-1)) for t in batch.tables] or [np.zeros(0)])
    weights, sums, beyond = [np.zeros(0, np.int64)], [np.zeros(0)], [np.zeros(0)]
    for group, counter in counters(batch):
        scores = scores_by_sum(group, counter)[0]  # shape: (C, T)
        weights.append(np.tile([w for of_states in counter.weights for w in of_states], len(scores)))
        sums.append(_array(scores.reshape(-1)))
        beyond.append(_array(distances(scores).reshape(-1)) / _typical(counter.weights))
    fields: dict[str, Any] = {
        **Layout.of_batch(batch).fields,
        "unary": unary,
        "values": values,
        "weights": _joined(weights),
        "sums": np.concatenate(sums),
    }
    return Arrays(**fields), np.isneginf(values).astype(np.float64), np.concatenate(beyond)


def _typical(weights: Weights) -> float:
    """The mean weight other than 0, so that penalties count wrong variables, whatever the unit of the sum."""
    some = [w for of_states in weights for w in of_states if w]
    return sum(some) / len(some) if some else 1.0


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().double().cpu().numpy()


def _starts(sizes: NDArray[Any]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _joined(parts: list[NDArray[Any]]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)


def _incidence(members: Ints, first: Ints, count: int) -> tuple[Ints, Ints, Ints]:
    """Where the factors of each variable start, the factors, and the slots in ``members`` that they come from."""
    slots = np.argsort(members, kind="stable")
    factor = np.repeat(np.arange(len(first) - 1), np.diff(first))
    return _starts(np.bincount(members, minlength=count)), factor[slots].astype(np.int64), slots


def _distinct(keys: Ints) -> Ints:
    """Sorted, each once; several times faster than `np.unique`, whose hash table misses the caches."""
    keys = np.sort(keys, kind="stable")
    new = np.ones(len(keys), dtype=np.bool_)
    new[1:] = keys[1:] != keys[:-1]
    distinct: Ints = keys[new]
    return distinct


def adjacency(cliques: list[NDArray[Any]], count: int) -> tuple[Ints, Ints]:
    """The distinct neighbours of each variable: where they start, and who they are."""
    keys = [np.zeros(0, dtype=np.int64)]
    for scopes in cliques:
        a, b = np.triu_indices(scopes.shape[1], 1)
        keys.append(_distinct(scopes[:, a].reshape(-1) * count + scopes[:, b].reshape(-1)))
    i, j = np.divmod(np.concatenate(keys), max(1, count))
    i, j = np.divmod(_distinct(np.concatenate([i * count + j, j * count + i])), max(1, count))
    return _starts(np.bincount(i, minlength=count)), j
