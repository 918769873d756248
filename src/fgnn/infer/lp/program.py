"""The linear program over locally consistent marginals: its rows and columns, and the numbers of each model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.lp.flows import Flows, bounds_are_hull, flow_rows, flowing
from fgnn.pgm import ModelBatch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Program:
    """The constraints, which all models of the batch share.

    Columns are the variables' states from 1 on, the tables' cells, and the arcs of flows. State 0 has no column: its
    marginal is what the other states leave.
    """

    cardinalities: Ints  # shape: (N,)
    first: Ints  # shape: (N,), the column of each variable's state 1
    num_states: int  # columns of variables
    cells: Ints  # the cells, of all tables concatenated, that have a column
    flows: Flows | None
    equal: Any  # CSC, rows of tables and flows
    equal_to: Floats
    less: Any  # CSC, rows of variables with three or more states and of bounds on sums
    binding: Ints  # which of those rows are kept


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of each model, all (B, .): costs to minimise, bounds of columns, right-hand sides."""

    cost: Floats
    lower: Floats
    upper: Floats
    less_than: Floats
    constant: Floats  # shape: (B,)
    infeasible: NDArray[np.bool_]  # shape: (B,), a variable has no allowed state

    def select(self, models: Ints) -> Numbers:
        return Numbers(*(getattr(self, f.name)[models] for f in fields(self)))


def linear_program(batch: ModelBatch) -> tuple[Program, Numbers]:
    """The program of a batch and its numbers, without solving it."""
    cards = batch.cardinalities.cpu().numpy()
    first = np.concatenate([[0], np.cumsum(cards - 1)]).astype(np.int64)
    equal, equal_to, cells = _table_rows(batch, first)
    flows = flow_rows(batch, first) if flowing(batch) else None
    if flows is not None:
        equal, equal_to = _beside(equal, flows.equal, int(first[-1])), np.concatenate([equal_to, flows.equal_to])
    less = _inequality_rows(batch, cards, first, equal.shape[1])
    # A row that no model can break (at least 0, at most all) only costs time.
    binding = np.nonzero((_right_hand_sides(batch, cards) < np.asarray(less.maximum(0).sum(1))).any(0))[0]
    program = Program(cards, first[:-1], int(first[-1]), cells, flows, equal, equal_to, less[binding].tocsc(), binding)
    return program, _numbers(batch, program)


def _table_rows(batch: ModelBatch, first: Ints) -> tuple[Any, Floats, Ints]:
    """Each table's cells sum to 1, and to its variables' marginals; cells that are -inf in every model are left out."""
    from scipy import sparse

    width = int(first[-1])
    rows, columns, values = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    right: list[Floats] = [np.zeros(0)]
    used = [np.zeros(0, np.bool_)]
    height, at = 0, 0
    for t in batch.tables:
        scopes, shape = t.scopes.cpu().numpy(), t.shape
        count, size = len(scopes), int(np.prod(shape))
        states = np.stack(np.unravel_index(np.arange(size), shape), 1)  # shape: (cells, A)
        cell = width + at + np.arange(count * size).reshape(count, size)
        rows.append(np.repeat(height + np.arange(count), size))
        columns.append(cell.ravel())
        values.append(np.ones(count * size))
        right.append(np.ones(count))
        height += count
        for axis, k in enumerate(shape):
            link = height + np.arange(count * (k - 1)).reshape(count, k - 1)
            others = np.nonzero(states[:, axis])[0]
            rows += [link[:, states[others, axis] - 1].ravel(), link.ravel()]
            columns += [cell[:, others].ravel(), (first[scopes[:, axis], None] + np.arange(k - 1)).ravel()]
            values += [np.ones(count * len(others)), np.full(link.size, -1.0)]
            right.append(np.zeros(link.size))
            height += link.size
        used.append((t.values > -torch.inf).any(0).cpu().numpy().ravel())
        at += count * size
    cells = np.nonzero(np.concatenate(used))[0]
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    equal = sparse.csc_array(entries, shape=(height, width + at))
    return equal[:, np.concatenate([np.arange(width), width + cells])], np.concatenate(right), cells


def _beside(tables: Any, flows: Any, states: int) -> Any:
    """Rows of tables and of flows, whose first columns, the states, are the same."""
    from scipy import sparse

    parts = [[tables[:, :states], tables[:, states:], None], [flows[:, :states], None, flows[:, states:]]]
    return sparse.block_array(parts, format="csc")


def _inequality_rows(batch: ModelBatch, cards: Ints, first: Ints, width: int) -> Any:
    """Rows for variables of three or more states, then for bounds on sums; each set twice: at most, then at least."""
    from scipy import sparse

    many = np.nonzero(cards > 2)[0]
    states = np.concatenate([np.zeros(0, np.int64), *(np.arange(first[i], first[i + 1]) for i in many)])
    sets = [(len(many), np.repeat(np.arange(len(many)), cards[many] - 1), states, np.ones(len(states)))]
    for f in filter(bounds_are_hull, batch.counted):
        scopes, counter = f.scopes.cpu().numpy(), f.counter
        assert counter is not None
        # What state 0 weighs is on the other side: its marginal has no column.
        terms = [(a, s, w[s] - w[0]) for a, w in enumerate(counter.weights) for s in range(1, len(w)) if w[s] != w[0]]
        axis, state, weight = np.array(terms, np.int64).reshape(-1, 3).T
        row = np.repeat(np.arange(len(scopes)), len(terms))
        column = (first[scopes[:, axis]] + state - 1).ravel()
        sets.append((len(scopes), row, column, np.tile(weight.astype(np.float64), len(scopes))))
    rows, columns, values = [], [], []
    height = 0
    for count, row, column, value in sets:
        rows += [height + row, height + count + row]
        columns += [column, column]
        values += [value, -value]
        height += 2 * count
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    return sparse.csr_array(entries, shape=(height, width))


def _right_hand_sides(batch: ModelBatch, cardinalities: Ints) -> Floats:
    """The bounds of the inequality rows, shape (B, rows): variables of three or more states, then bounds on sums."""
    forbidden = batch.unary[:, torch.from_numpy(cardinalities > 2), 0].cpu().numpy() == -np.inf
    sides = [np.ones(forbidden.shape), np.where(forbidden, -1.0, 0.0)]
    for f in filter(bounds_are_hull, batch.counted):
        counter, bounds = f.counter, f.bounds()
        assert counter is not None
        assert bounds is not None
        at_zero = sum(w[0] for w in counter.weights)
        low, high = (np.broadcast_to(b.double().cpu().numpy(), (len(batch), b.shape[1])) - at_zero for b in bounds)
        sides += [high, -low]
    return np.concatenate(sides, 1)


def _numbers(batch: ModelBatch, program: Program) -> Numbers:
    unary = batch.unary.double().cpu().numpy()  # shape: (B, N, K)
    real = batch.state_mask.cpu().numpy()
    allowed = unary > -np.inf
    base = np.where(allowed[:, :, 0], unary[:, :, 0], 0.0) if unary.shape[2] else np.zeros(unary.shape[:2])
    gain = np.where(allowed, unary - base[:, :, None], 0.0)[:, :, 1:][:, real[:, 1:]]
    lower, upper = np.zeros_like(gain), allowed[:, :, 1:][:, real[:, 1:]].astype(np.float64)
    binary = np.nonzero(program.cardinalities == 2)[0]
    lower[:, program.first[binary]] = ~allowed[:, binary, 0]
    upper = np.maximum(upper, lower)  # they differ only where a binary variable has no allowed state

    cells = [t.values.double().flatten(1).cpu().numpy() for t in batch.tables]
    theta = np.concatenate(cells, 1)[:, program.cells] if cells else np.zeros((len(unary), 0))
    if program.flows is not None:
        theta = np.concatenate([theta, program.flows.numbers(batch)], 1)
    theta_ok = theta > -np.inf
    return Numbers(
        cost=-np.concatenate([gain, np.where(theta_ok, theta, 0.0)], 1),
        lower=np.concatenate([lower, np.zeros_like(theta)], 1),
        upper=np.concatenate([upper, theta_ok.astype(np.float64)], 1),
        less_than=_right_hand_sides(batch, program.cardinalities)[:, program.binding],
        constant=base.sum(1) + batch.constant.double().cpu().numpy(),
        infeasible=~(allowed & real).any(2).all(1),
    )
