"""Build a step over all joint states, where a list would save little: full tables that add up by broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.elimination.shapes import DenseInput, DenseShape, index_tensor
from fgnn.infer.elimination.states import States

_WORTH_STORING = 0.75


@dataclass(frozen=True, eq=False)
class Table:
    """An input as a full table: ``places`` are ascending positions; ``entries`` has the last of them as first axis."""

    places: tuple[int, ...]
    entries: NDArray[np.int64] | None  # the slot's entry at each joint state, -1: forbidden; None: in order


def build_dense(
    cardinalities: Sequence[int], tables: Sequence[Table], children: Sequence[tuple[int, bool]]
) -> DenseShape:
    """Arrange the additions so that small tables are added up before they meet large ones.

    Args:
        cardinalities: Of the step's scope; position 0 is eliminated.
        tables: The inputs, one slot each.
        children: The inputs that are results of earlier steps, and whether these are lists.
    """
    width = len(cardinalities)
    inputs = []
    for table in tables:
        shape = tuple(cardinalities[p] if p in table.places else 1 for p in reversed(range(width)))
        rows = None if table.entries is None else table.entries.reshape(-1)
        gaps = rows is not None and bool((rows < 0).any())
        inputs.append(DenseInput(None if rows is None else index_tensor(rows), shape, gaps))
    merges, terms = _merge([frozenset(t.places) for t in tables], cardinalities)
    listed_rows = tuple(inputs[slot].rows if listed else None for slot, listed in children)
    return DenseShape(tuple(reversed(cardinalities)), tuple(inputs), merges, terms, listed_rows)


def dense_table(places: Sequence[int], entries: NDArray[np.int64], size: int) -> Table:
    """An input whose entries' axes are in the order of ``places``, brought into the order of the step's axes.

    ``size`` is the number of entries the slot has, -1 where that is not known to be those named here.
    """
    turned = np.transpose(entries, np.argsort(places)[::-1])
    in_order = turned.size == size and bool((turned.reshape(-1) == np.arange(size)).all())
    return Table(tuple(sorted(places)), None if in_order else turned)


def entries_of_states(states: States) -> NDArray[np.int64]:
    """The row of a list at each of all joint states, -1 where it has none; the first variable varies fastest."""
    rows = np.full(math.prod(states.cardinalities), -1)
    rows[flat_index(states)] = np.arange(len(states))
    return rows


def flat_index(states: States) -> NDArray[np.int64]:
    """Where each state lies in a full table whose first variable varies fastest."""
    index = np.zeros(len(states), dtype=np.int64)
    for variable, k in zip(reversed(states.scope), reversed(states.cardinalities), strict=True):
        index = index * k + states.column(variable)
    return index


def _merge(
    scopes: Sequence[frozenset[int]], cardinalities: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Which slots to add up first: pairs, while their joint table is clearly smaller than the whole step."""

    def size(scope: frozenset[int]) -> float:
        return math.prod(cardinalities[p] for p in scope)

    whole = size(frozenset(range(len(cardinalities))))
    slots = dict(enumerate(scopes))
    merges: list[tuple[int, int]] = []
    fresh = len(scopes)
    while len(slots) > 1:
        pairs = [(a, b) for a in slots for b in slots if a < b]
        a, b = min(pairs, key=lambda pair: size(slots[pair[0]] | slots[pair[1]]))
        union = slots[a] | slots[b]
        if size(union) > _WORTH_STORING * whole:
            break
        del slots[a], slots[b]
        slots[fresh] = union
        merges.append((a, b))
        fresh += 1
    # the largest first: the sum then has the shape of the result from the start
    return tuple(merges), tuple(sorted(slots, key=lambda s: (-size(slots[s]), s)))
