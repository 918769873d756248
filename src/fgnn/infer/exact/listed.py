"""Build a step over an explicit list of feasible joint states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import torch

from fgnn.infer.exact.buckets import LocalLimit
from fgnn.infer.exact.shapes import ListedShape, Term, index_tensor
from fgnn.infer.exact.states import Rows, States, all_states, join, sorted_rows

# A partial sum is stored if it has at most this share of the rows that read it.
_WORTH_STORING = 0.75


@dataclass(frozen=True, eq=False)
class Item:
    """An input of a step: its states, over positions of the step's scope, and where their numbers are, if any."""

    states: States
    slot: int | None  # None: no numbers
    size: int  # entries of the slot
    entries: Rows  # shape: (S,), the entry of each state in the slot


@dataclass(frozen=True, eq=False)
class _Node:
    """An item, or a list derived from others: ``sources`` are these, each with its row for every row of this node."""

    states: States
    item: Item | None = None
    sources: tuple[tuple[_Node, Rows], ...] = ()

    def __len__(self) -> int:
        return len(self.states)

    @cached_property
    def slots(self) -> int:
        """How many slots add up to the numbers of this node."""
        if self.item is not None:
            return int(self.item.slot is not None)
        return sum(node.slots for node, _ in self.sources)


def build_listed(
    cardinalities: Sequence[int],
    items: Sequence[Item],
    children: Sequence[int],
    limits: Sequence[LocalLimit],
    counted: Sequence[tuple[LocalLimit, int]],
    slots: int,
    most: int,
) -> ListedShape | None:
    """Join the items, drop the sums that are not allowed, and index the result; None if no feasible state is left.

    Args:
        cardinalities: Of the step's scope; position 0 is eliminated.
        items: The inputs.
        children: Which items are results of earlier steps.
        limits: The counters, as positions.
        counted: Those that have numbers, and the slot that has one for every sum.
        slots: Number of slots of the inputs.
        most: The longest list allowed; longer ones raise `TooManyStates`.
    """
    root = _join_all(cardinalities, items, limits, most)
    if len(root) == 0:
        return None
    rest = tuple(range(1, len(cardinalities)))
    # Position 0 has the lowest bits, so rows that differ only there become neighbours, with ascending states.
    order = sorted_rows(root.states.words)
    words = root.states.project(rest)[order]
    start = np.flatnonzero(np.concatenate([[True], (words[1:] != words[:-1]).any(1)]))
    degree = np.diff(np.append(start, len(words)))
    by_degree = np.argsort(-degree, kind="stable")
    start, degree = start[by_degree], degree[by_degree]
    lengths = np.searchsorted(-degree, -np.arange(int(degree[0]))).tolist()  # how many have more than r choices
    blocks = [order[start[:n] + r] for r, n in enumerate(lengths)]  # joint rows, choice by choice

    sums = _Sums(slots)
    entries = [(slot, u.sums.entries(root.states.sums(u.places, u.weights))) for u, slot in counted]
    terms = []
    for rows in blocks:
        block = sums.terms(root, rows, len(root))
        block += [Term(slot, index_tensor(of[rows])) for slot, of in entries]
        terms.append(tuple(block))
    everything = np.concatenate(blocks)
    origins: dict[Item, Rows] = {}
    _origins(root, everything, origins)
    child_rows = [items[c].entries[origins[items[c]]] for c in children]
    return ListedShape(
        merges=tuple(sums.merges),
        blocks=tuple(terms),
        lengths=tuple(lengths),
        starts=torch.tensor(np.cumsum([0, *lengths[:-1]]), dtype=torch.int64),
        digits=index_tensor(root.states.column(0)[everything]),
        child_rows=tuple(index_tensor(rows) for rows in child_rows),
        message=States(rest, tuple(cardinalities[1:]), words[start]),
    )


def _join_all(cardinalities: Sequence[int], items: Sequence[Item], limits: Sequence[LocalLimit], most: int) -> _Node:
    """Join scopes contained in another first, then the pairs of smallest product; add variables that are in no item."""
    by_scope: dict[tuple[int, ...], list[_Node]] = {}
    for item in items:
        by_scope.setdefault(item.states.scope, []).append(_Node(item.states, item))
    nodes = [_prune(_common(same), limits) for same in by_scope.values()]
    nodes.sort(key=lambda node: (len(node.states.scope), len(node)))
    at = 0
    while at < len(nodes):
        scope = set(nodes[at].states.scope)
        above = [n for n in range(at + 1, len(nodes)) if scope < nodes[n].states.places.keys()]
        if not above:
            at += 1
            continue
        home = min(above, key=lambda n: len(nodes[n]))
        nodes[home] = _joined(nodes[home], nodes[at], limits, most)
        del nodes[at]
    while len(nodes) > 1:
        a, b = min(combinations(range(len(nodes)), 2), key=lambda pair: _product(nodes[pair[0]], nodes[pair[1]]))
        both = _joined(nodes[a], nodes[b], limits, most)
        nodes = [node for n, node in enumerate(nodes) if n not in (a, b)] + [both]
    node = nodes[0] if nodes else _Node(States((), (), np.zeros((1, 1), dtype=np.int64)))
    for p, k in enumerate(cardinalities):
        if p not in node.states.places:
            states, rows, _ = join(node.states, all_states((p,), (k,), None), most)
            node = _prune(_Node(states, sources=((node, rows),)), limits)
    return node


def _common(nodes: Sequence[_Node]) -> _Node:
    """The intersection of lists over one scope."""
    if len(nodes) == 1:
        return nodes[0]
    states = nodes[0].states
    for node in nodes[1:]:
        states, _, _ = join(states, node.states, len(states))
    return _Node(states, sources=tuple((node, join(states, node.states, len(states))[2]) for node in nodes))


def _joined(one: _Node, two: _Node, limits: Sequence[LocalLimit], most: int) -> _Node:
    if len(one) < len(two):  # the join keeps the order of its left side
        one, two = two, one
    states, one_rows, two_rows = join(one.states, two.states, most)
    return _prune(_Node(states, sources=((one, one_rows), (two, two_rows))), limits)


def _product(one: _Node, two: _Node) -> float:
    """The approximate length of the join of two lists, assuming evenly distributed states."""
    shared = sum(place[2] for i, place in one.states.places.items() if i in two.states.places)
    return len(one) * len(two) / 2.0**shared


def _prune(node: _Node, limits: Sequence[LocalLimit]) -> _Node:
    """Drop the rows whose sums are not allowed whatever the states of the missing variables."""
    keep = np.ones(len(node), dtype=np.bool_)
    for limit in limits:
        allowed, weights = limit.sums, None
        inside = [p for p in limit.places if p in node.states.places]
        reach = len(inside)
        if limit.weights is not None:
            weights = [w for p, w in zip(limit.places, limit.weights, strict=True) if p in node.states.places]
            reach = sum(map(max, weights))
        least = allowed.lower - (limit.total - reach)
        complete = allowed.allowed is not None and len(inside) == len(limit.places)
        if complete or allowed.upper < reach or least > 0:
            sums = node.states.sums(inside, weights)
            keep &= allowed.allow(sums) if complete else (sums <= allowed.upper) & (sums >= least)
    if keep.all():
        return node
    rows = np.flatnonzero(keep)
    if node.item is not None:
        return _Node(node.states.take(rows), sources=((node, rows),))
    return _Node(node.states.take(rows), sources=tuple((source, of[rows]) for source, of in node.sources))


def _origins(node: _Node, rows: Rows, origins: dict[Item, Rows]) -> None:
    """Add the rows of every item below a node that the given rows of the node come from."""
    if node.item is not None:
        origins[node.item] = rows
    for source, of in node.sources:
        _origins(source, of[rows], origins)


class _Sums:
    """Turns nodes into terms, and stores partial sums where that saves work: these are the ``merges`` of the shape."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.merges: list[tuple[Term, ...]] = []
        self.stored: dict[_Node, int] = {}

    def terms(self, node: _Node, rows: Rows, readers: int) -> list[Term]:
        """The terms that add up to the numbers of a node at ``rows``; ``readers`` rows will be read in all."""
        if node.slots == 0:
            return []
        if node.item is not None and node.item.slot is not None:
            return [_term(node.item.slot, node.item.entries[rows], node.item.size)]
        if node not in self.stored and node.slots > 1 and len(node) <= _WORTH_STORING * readers:
            every = np.arange(len(node))
            inner = [t for source, of in node.sources for t in self.terms(source, of[every], len(node))]
            self.merges.append(tuple(inner))
            self.stored[node] = self.slots + len(self.merges) - 1
        if node in self.stored:
            return [_term(self.stored[node], rows, len(node))]
        return [t for source, of in node.sources for t in self.terms(source, of[rows], readers)]


def _term(slot: int, entries: Rows, size: int) -> Term:
    in_order = len(entries) == size and bool((entries == np.arange(size)).all())
    return Term(slot, None if in_order else index_tensor(entries))
