"""One model as flat arrays, the form that compiled loops read.

A factor is a *table*, or a *counter*: a function of one integer, the sum of a weight per member,

.. math:: \\theta_c(x_c) = g_c \\Big( \\sum_{i \\in s(c)} w_{ci}(x_i) \\Big) .

A budget counts its ones. Forbidden entries become finite penalties, so that a search may pass through infeasible
assignments; `Arrays.forbidden_cells` and `Arrays.forbidden_sums` list them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.graph import Structure
from fgnn.pgm import ModelBatch

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LARGE = 48  # counters over more variables form no clique in `neighbours`: a subgraph frees one member at most


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
    # variables that share a table or a small counter
    neighbours: Ints  # shape: (N + 1,)
    neighbour: Ints


@dataclass(frozen=True, eq=False)
class Layout:
    """What the arrays of all models of a structure have in common."""

    fields: dict[str, Ints]

    @classmethod
    def of(cls, structure: Structure, shapes: tuple[tuple[int, ...], ...]) -> Layout:
        """Lay out the tables of the given shapes, by group, and the budgets."""
        assert structure.cardinalities is not None
        cards = structure.cardinalities.cpu().numpy().astype(np.int64)
        count = len(cards)
        scopes = [group.scopes.cpu().numpy() for group in structure.groups.values()]
        tables, budgets = scopes[: len(shapes)], scopes[len(shapes) :]
        sizes = [int(np.prod(shape)) for shape in shapes]
        strides = [np.array([int(np.prod(shape[a + 1 :])) for a in range(len(shape))]) for shape in shapes]
        first = _starts(_joined([np.full(len(s), s.shape[1]) for s in tables]))
        members = _joined([s.reshape(-1) for s in tables])
        stride = _joined([np.tile(t, len(s)) for s, t in zip(tables, strides, strict=True)])
        cell = _starts(_joined([np.full(len(s), n) for s, n in zip(tables, sizes, strict=True)]))
        count_sizes = _joined([np.full(len(s), s.shape[1]) for s in budgets])
        count_first = _starts(count_sizes)
        counted = _joined([s.reshape(-1) for s in budgets])
        weight = 2 * np.arange(len(counted), dtype=np.int64)
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
            "weights": np.tile(np.array([0, 1], dtype=np.int64), len(counted)),
            "total": _starts(count_sizes + 1),
        }
        fields["tables"], fields["table"], slots = _incidence(members, first, count)
        fields["stride"] = stride[slots]
        fields["counters"], fields["counter"], slots = _incidence(counted, count_first, count)
        fields["own_weight"] = weight[slots]
        cliques = tables + [s for s in budgets if s.shape[1] <= LARGE]
        fields["neighbours"], fields["neighbour"] = adjacency(cliques, count)
        return cls(fields)


def arrays_of(batch: ModelBatch, b: int) -> tuple[Arrays, Floats, Floats]:
    """Model ``b`` of a batch, with -inf for what is forbidden, and how far each entry of `values` and `sums` is from
    allowed: 0 or 1 for tables, units beyond the bounds for counters."""
    shapes = tuple(t.shape for t in batch.tables)
    layout: Layout = batch.structure.derived(("search", shapes), lambda: Layout.of(batch.structure, shapes))
    unary = _array(batch.unary[b][batch.state_mask])
    values = np.concatenate([_array(t.values[b].reshape(-1)) for t in batch.tables] or [np.zeros(0)])
    sums, beyond = [np.zeros(0)], [np.zeros(0)]
    for u in batch.budgets:
        ones = torch.arange(u.scopes.shape[1] + 1, device=batch.device)
        low, high = u.at_least[b][:, None], u.at_most[b][:, None]
        off = (ones - high).clamp(min=0) + (low - ones).clamp(min=0)  # shape: (C, n + 1)
        beyond.append(_array(off.reshape(-1)))
        sums.append(np.where(beyond[-1] > 0, -np.inf, 0.0))
    fields: dict[str, Any] = {**layout.fields, "unary": unary, "values": values, "sums": np.concatenate(sums)}
    return Arrays(**fields), np.isneginf(values).astype(np.float64), np.concatenate(beyond)


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
