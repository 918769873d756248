"""Build a step over all joint states, where a list would save little: full tables added up by broadcasting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.shapes import DenseInput, DenseShape, index_tensor
from fgnn.infer.exact.states import States

_WORTH_STORING = 0.75


@dataclass(frozen=True, eq=False)
class Table:
    """An input as a full table: ``places`` are ascending positions; ``entries`` has the last of them as first axis."""

    places: tuple[int, ...]
    entries: NDArray[np.int64] | None  # the entry of the slot at each joint state, -1: forbidden; None: in order


def build_dense(
    cardinalities: Sequence[int], tables: Sequence[Table], children: Sequence[tuple[int, bool]]
) -> DenseShape:
    """Arrange the additions so that small tables are added up before large ones.

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
        has_gaps = rows is not None and bool((rows < 0).any())
        inputs.append(DenseInput(None if rows is None else index_tensor(rows), shape, has_gaps))
    merges, terms = _merge([frozenset(t.places) for t in tables], cardinalities)
    listed_rows = tuple(inputs[slot].rows if listed else None for slot, listed in children)
    return DenseShape(tuple(reversed(cardinalities)), tuple(inputs), merges, terms, listed_rows)


def dense_table(places: Sequence[int], entries: NDArray[np.int64], size: int) -> Table:
    """Permute the axes of an input, which are in the order of ``places``, to the order of the step.

    ``size`` is the number of entries of the slot, or -1 if unknown.
    """
    permuted = np.transpose(entries, np.argsort(places)[::-1])
    in_order = permuted.size == size and bool((permuted.reshape(-1) == np.arange(size)).all())
    return Table(tuple(sorted(places)), None if in_order else permuted)


def entries_of_states(states: States) -> NDArray[np.int64]:
    """The row in a list of each joint state, -1 if it is not in the list; the first variable varies fastest."""
    rows = np.full(math.prod(states.cardinalities), -1)
    rows[flat_index(states)] = np.arange(len(states))
    return rows


def flat_index(states: States) -> NDArray[np.int64]:
    """The index of each state in a full table whose first variable varies fastest."""
    index = np.zeros(len(states), dtype=np.int64)
    for variable, k in zip(reversed(states.scope), reversed(states.cardinalities), strict=True):
        index = index * k + states.column(variable)
    return index


def _merge(
    scopes: Sequence[frozenset[int]], cardinalities: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Which slots to add up first: scopes contained in another, then pairs, if well below the size of the step."""

    def size(scope: frozenset[int]) -> float:
        return math.prod(cardinalities[p] for p in scope)

    most = _WORTH_STORING * size(frozenset(range(len(cardinalities))))
    merges: list[tuple[int, ...]] = []

    def add_up(slots: list[int]) -> int:
        if len(slots) == 1:
            return slots[0]
        merges.append(tuple(slots))
        return len(scopes) + len(merges) - 1

    groups: dict[frozenset[int], list[int]] = {}
    for slot, scope in enumerate(scopes):
        groups.setdefault(scope, []).append(slot)
    for scope in sorted(groups, key=lambda s: (size(s), sorted(s))):
        above = [other for other in groups if scope < other and size(other) <= most]
        if above and len(groups) > 1:
            home = min(above, key=lambda s: (size(s), sorted(s)))
            groups[home].append(add_up(groups.pop(scope)))
    while True:
        small = [s for s in groups if size(s) <= most]
        pairs = [(one, two) for a, one in enumerate(small) for two in small[a + 1 :] if size(one | two) <= most]
        if not pairs:
            break
        one, two = min(pairs, key=lambda pair: size(pair[0] | pair[1]))
        sums = [add_up(groups.pop(one)), add_up(groups.pop(two))]
        groups[one | two] = groups.get(one | two, []) + sums
    terms = []
    # Largest first: the sum then has the shape of the result from the start.
    for scope in sorted(groups, key=lambda s: (-size(s), sorted(s))):
        terms += [add_up(groups[scope])] if size(scope) <= most else groups[scope]
    return tuple(merges), tuple(terms)
