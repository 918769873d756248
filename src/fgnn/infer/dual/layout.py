"""The arrays of `dual`: nodes with their numbers, and edges from each node to the larger ones that contain it.

Nodes are the variables, then the tables, then the clusters; a node's numbers lie in a flat array. An edge joins a node
to a *parent* whose states determine its own: a variable to a table or a counter, a table to a cluster. The projection
of a parent's cell to the node's state is shared by all edges of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from fgnn.infer.dual.counters import Counters, build_counters
from fgnn.pgm import ModelBatch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Layout:
    """Structure shared by all models of a batch; `with_clusters` extends it.

    Counters are numbered after the nodes: as parents they have no cells.
    """

    num_variables: int
    num_tables: int
    scopes: list[tuple[int, ...]]  # of tables, then of clusters
    shapes: list[tuple[int, ...]]
    start: Ints  # shape: (nodes + 1,), where the numbers of a node begin
    parent: Ints  # shape: (E,), a node; or -1 - c for counter c
    child: Ints  # shape: (E,), a node
    delta: Ints  # shape: (E,), where the multipliers of an edge begin
    projection: Ints  # shape: (E,), where the projection of an edge begins
    projections: Ints  # concatenated, one entry per cell of a parent
    up_start: Ints  # shape: (nodes + 1,), the edges to the parents of a node, in `up`
    up: Ints  # shape: (E,)
    down_start: Ints  # shape: (nodes + 1,), the edges to the children of a node, in `down`
    down: Ints
    counters: Counters  # without numbers
    forward: Floats  # shape: (E,), the share of a node that an edge gets in a forward sweep
    backward: Floats

    @property
    def num_nodes(self) -> int:
        return len(self.start) - 1

    @property
    def num_deltas(self) -> int:
        return int(self.delta[-1] + self._sizes[self.child[-1]]) if len(self.delta) else 0

    @property
    def _sizes(self) -> Ints:
        return np.diff(self.start)

    def with_clusters(self, scopes: Sequence[tuple[int, ...]], members: Sequence[Sequence[int]]) -> Layout:
        """Add clusters: their variables, and for each the tables (as nodes) that it contains."""
        cards = self._sizes[: self.num_variables]
        shapes = [tuple(int(cards[i]) for i in scope) for scope in scopes]
        first = self.num_nodes
        parent, child, projections, places = [], [], [self.projections], []
        known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        at = len(self.projections)
        for c, (scope, shape, tables) in enumerate(zip(scopes, shapes, members, strict=True)):
            for node in tables:
                axes = tuple(scope.index(i) for i in self.scopes[node - self.num_variables])
                if (shape, axes) not in known:
                    known[shape, axes] = at
                    projections.append(_projection(shape, axes))
                    at += len(projections[-1])
                parent.append(first + c)
                child.append(node)
                places.append(known[shape, axes])
        start = np.concatenate([self.start, self.start[-1] + np.cumsum([prod(s) for s in shapes])])
        return _finish(
            replace(
                self,
                scopes=[*self.scopes, *scopes],
                shapes=[*self.shapes, *shapes],
                start=start.astype(np.int64),
                parent=np.concatenate([self.parent, np.array(parent, np.int64)]),
                child=np.concatenate([self.child, np.array(child, np.int64)]),
                projection=np.concatenate([self.projection, np.array(places, np.int64)]),
                projections=np.concatenate(projections),
            )
        )


def build_layout(batch: ModelBatch) -> Layout:
    """The layout of a batch without clusters."""
    cards = batch.cardinalities.cpu().numpy()
    parent: list[Ints] = [np.zeros(0, np.int64)]
    child: list[Ints] = [np.zeros(0, np.int64)]
    place: list[Ints] = [np.zeros(0, np.int64)]
    projections: list[Ints] = [np.zeros(0, np.int64)]
    scopes: list[tuple[int, ...]] = []
    shapes: list[tuple[int, ...]] = []
    node, at = len(cards), 0
    for t in batch.tables:
        members = t.scopes.cpu().numpy()
        for axis in range(members.shape[1]):
            projections.append(_projection(t.shape, (axis,)))
            parent.append(node + np.arange(len(members)))
            child.append(members[:, axis])
            place.append(np.full(len(members), at))
            at += len(projections[-1])
        scopes += map(tuple, members.tolist())
        shapes += [t.shape] * len(members)
        node += len(members)
    count = 0
    for f in batch.counted:
        members = f.scopes.cpu().numpy()
        parent.append(-1 - (count + np.repeat(np.arange(len(members)), members.shape[1])))
        child.append(members.ravel())
        place.append(np.zeros(members.size, np.int64))
        count += len(members)
    sizes = np.concatenate([cards, np.array([prod(s) for s in shapes], np.int64)])
    empty = np.zeros(0, np.int64)
    layout = Layout(
        num_variables=len(cards),
        num_tables=len(scopes),
        scopes=scopes,
        shapes=shapes,
        start=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        parent=np.concatenate(parent),
        child=np.concatenate(child),
        delta=empty,
        projection=np.concatenate(place),
        projections=np.concatenate(projections),
        up_start=empty,
        up=empty,
        down_start=empty,
        down=empty,
        counters=build_counters(batch, np.concatenate(parent), np.concatenate(child)),
        forward=np.zeros(0),
        backward=np.zeros(0),
    )
    return _finish(layout)


def _finish(layout: Layout) -> Layout:
    """Compute what follows from the nodes and the edges."""
    sizes = layout._sizes
    widths = sizes[layout.child]
    up, up_start = _grouped(layout.child, layout.num_nodes)
    has_node = np.flatnonzero(layout.parent >= 0)
    down, down_start = _grouped(layout.parent[has_node], layout.num_nodes)
    forward, backward = _weights(layout)
    return replace(
        layout,
        delta=np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64) if len(widths) else np.zeros(0, np.int64),
        up=up,
        up_start=up_start,
        down=has_node[down],
        down_start=down_start,
        forward=forward,
        backward=backward,
    )


def _grouped(keys: Ints, count: int) -> tuple[Ints, Ints]:
    """Indices sorted by key, and where each key's begin."""
    start = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=count))]).astype(np.int64)
    return np.argsort(keys, kind="stable").astype(np.int64), start


def _weights(layout: Layout) -> tuple[Floats, Floats]:
    """The shares of sequential reweighted message passing (Kolmogorov, 2015).

    A variable gives 1 / max(earlier, later) to each factor with a variable further on, where the two count its factors
    with earlier and with later variables. A table gives equal shares to its clusters and keeps one.
    """
    edges = len(layout.parent)
    key = np.where(layout.parent >= 0, layout.parent, layout.num_nodes - 1 - layout.parent)
    factors = int(key.max()) + 1 if edges else 0
    first = np.full(factors, np.iinfo(np.int64).max)
    last = np.full(factors, -1)
    np.minimum.at(first, key, layout.child)
    np.maximum.at(last, key, layout.child)
    later, earlier = layout.child < last[key], layout.child > first[key]
    counts = [np.bincount(layout.child[mask], minlength=layout.num_nodes) for mask in (later, earlier)]
    share = 1.0 / np.maximum(1, np.maximum(*counts))[layout.child]
    forward, backward = np.where(later, share, 0.0), np.where(earlier, share, 0.0)
    of_cluster = layout.child >= layout.num_variables
    clusters = np.bincount(layout.child, minlength=layout.num_nodes)[layout.child]
    equal = 1.0 / (clusters + 1.0)
    return np.where(of_cluster, equal, forward), np.where(of_cluster, equal, backward)


def _projection(shape: tuple[int, ...], axes: tuple[int, ...]) -> Ints:
    """For each cell of a table, the index of its states along some axes."""
    states = np.zeros((1,) * len(shape), np.int64)
    for axis in axes:
        along = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        states = states * shape[axis] + along
    return np.broadcast_to(states, shape).ravel()
