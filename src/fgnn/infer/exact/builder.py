"""Build the steps of a plan from its buckets; similar steps share their indices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.exact.buckets import Bucket, LocalLimit
from fgnn.infer.exact.dense import Table, build_dense, dense_table, entries_of_states, flat_index
from fgnn.infer.exact.listed import Item, build_listed
from fgnn.infer.exact.problem import Limit, Problem, Relation, Source, ones, sum_up
from fgnn.infer.exact.shapes import DenseShape, ListedShape, Shape
from fgnn.infer.exact.states import TooManyStates, all_states, pack


@dataclass(frozen=True, eq=False)
class Step:
    """The elimination of one variable: the operation (``shape``) and its ``inputs`` (sources, or earlier steps)."""

    variable: int
    scope: tuple[int, ...]  # the variables of the result, in elimination order
    shape: Shape
    inputs: tuple[Source | int, ...]
    children: tuple[int, ...]


class StepBuilder:
    """Appends a step for each bucket, in order; raises `TooManyStates` for lists longer than ``most``."""

    def __init__(self, problem: Problem, most: int) -> None:
        self.problem = problem
        self.most = most
        self.steps: list[Step] = []
        self._shapes: dict[object, Shape] = {}
        self._forms: dict[object, int] = {}
        self._lists: dict[ListedShape, int] = {}
        self._contents: dict[object, int] = {}
        self._form_of = [self._form(relation) for relation in problem.relations]

    def add(self, bucket: Bucket, listed: bool) -> bool:
        """Append the step of a bucket; returns False if no feasible state is left."""
        key = (
            listed,
            bucket.cardinalities,
            bucket.relation_places,
            tuple(self._form_of[r] for r in bucket.relations),
            bucket.child_places,
            tuple(self._result_key(c) for c in bucket.children),
            tuple(self._limit_key(limit) for limit in bucket.limits),
        )
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._listed(bucket) if listed else self._dense(bucket)
            if shape is None:
                return False
            self._shapes[key] = shape
        inputs: list[Source | int] = [
            s for r in bucket.relations if (s := self.problem.relations[r].source) is not None
        ]
        inputs += bucket.children
        inputs += [limit.source for _, limit in self._enforced(bucket) if not (listed and limit.plain)]
        self.steps.append(Step(bucket.scope[0], bucket.scope[1:], shape, tuple(inputs), bucket.children))
        return True

    # ---- the two kinds of step --------------------------------------------------------------------------------

    def _listed(self, bucket: Bucket) -> ListedShape | None:
        items = []
        slot = 0
        for r, places in zip(bucket.relations, bucket.relation_places, strict=True):
            relation = self.problem.relations[r]
            has_numbers = relation.source is not None
            items.append(self._relation_item(relation, places, slot if has_numbers else None))
            slot += has_numbers
        first_child = len(items)
        for c, places in zip(bucket.children, bucket.child_places, strict=True):
            items.append(self._child_item(c, places, slot))
            slot += 1
        counted = []
        for local, limit in self._enforced(bucket):
            if not limit.plain:
                counted.append((local, slot))
                slot += 1
        children = range(first_child, len(items))
        return build_listed(bucket.cardinalities, items, children, bucket.limits, counted, slot, self.most)

    def _dense(self, bucket: Bucket) -> DenseShape:
        tables: list[Table] = []
        for r, places in zip(bucket.relations, bucket.relation_places, strict=True):
            relation = self.problem.relations[r]
            if relation.source is not None and relation.cells is None and len(places) == 1:
                tables.append(Table(places, None))
            elif relation.source is not None:
                tables.append(dense_table(places, self._cells(relation), self._source_size(relation)))
        children = []
        for c, places in zip(bucket.children, bucket.child_places, strict=True):
            shape = self.steps[c].shape
            entries = entries_of_states(shape.message) if isinstance(shape, ListedShape) else None
            children.append((len(tables), entries is not None))
            tables.append(Table(places, entries))
        for local, _ in self._enforced(bucket):
            sums = sum_up(ones(len(local.places)) if local.weights is None else local.weights)
            tables.append(dense_table(local.places, local.sums.entries(sums), -1))
        return build_dense(bucket.cardinalities, tables, children)

    # ---- inputs of a list ------------------------------------------------------------------------------------

    def _relation_item(self, relation: Relation, places: tuple[int, ...], slot: int | None) -> Item:
        by_place = np.argsort(places)
        scope = tuple(places[a] for a in by_place)
        if relation.rows is not None:
            cards = tuple(self.problem.cardinalities[relation.scope[a]] for a in by_place)
            listed = pack(scope, cards, [relation.rows[:, a] for a in by_place])
            return Item(listed, slot, 0, np.zeros(len(listed), dtype=np.int64))
        cells = np.transpose(self._cells(relation), by_place)
        allowed = None if relation.allowed is None else np.transpose(relation.allowed, by_place)
        entries = cells.reshape(-1) if allowed is None else cells[allowed]
        states = all_states(scope, tuple(cells.shape), allowed)
        return Item(states, slot, self._source_size(relation), entries)

    def _child_item(self, child: int, places: tuple[int, ...], slot: int) -> Item:
        shape = self.steps[child].shape
        if isinstance(shape, ListedShape):
            states = shape.message.renamed(places)
            return Item(states, slot, len(states), np.arange(len(states)))
        if (count := math.prod(shape.cardinalities[:-1])) > self.most:
            raise TooManyStates(count)
        states = all_states(places, tuple(reversed(shape.cardinalities[:-1])), None)
        return Item(states, slot, len(states), flat_index(states))

    def _cells(self, relation: Relation) -> NDArray[np.int64]:
        """The entry of a relation's source at each joint state."""
        if relation.cells is not None:
            return relation.cells
        return np.arange(self._source_size(relation)).reshape(self._shape(relation))

    def _source_size(self, relation: Relation) -> int:
        """The number of entries of a relation's source; -1 (unknown) if some of them are left out."""
        return -1 if relation.cells is not None else math.prod(self._shape(relation))

    def _shape(self, relation: Relation) -> tuple[int, ...]:
        return tuple(self.problem.cardinalities[i] for i in relation.scope)

    # ---- keys ----------------------------------------------------------------------------------------------------

    def _enforced(self, bucket: Bucket) -> list[tuple[LocalLimit, Limit]]:
        return [(local, self.problem.limits[local.limit]) for local in bucket.limits if local.limit is not None]

    def _form(self, relation: Relation) -> int:
        """A number that is equal for relations which differ only in their source."""
        cells = None if relation.cells is None else relation.cells.tobytes()
        key = (self._shape(relation), relation.key, cells, relation.source is None)
        return self._forms.setdefault(key, len(self._forms))

    def _result_key(self, step: int) -> object:
        """Equal for equal lists, whichever steps made them, so that the steps of a long chain share one shape."""
        shape = self.steps[step].shape
        if isinstance(shape, DenseShape):
            return "dense"
        key = self._lists.get(shape)
        if key is None:
            content = (shape.message.cardinalities, shape.message.words.tobytes())
            key = self._lists[shape] = self._contents.setdefault(content, len(self._contents))
        return key

    def _limit_key(self, local: LocalLimit) -> object:
        plain = None if local.limit is None else self.problem.limits[local.limit].plain
        return (local.places, local.weights, local.total, local.sums, plain)
