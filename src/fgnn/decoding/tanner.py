"""Codes as tensors, with the messages and checks that a learned decoder differentiates through."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fgnn.decoding.code import Code
from fgnn.graph import FactorGraph, FactorGroup

GROUP = "check"
_MOST = 1 - 1e-7  # the largest product of tanh; 1 would be infinite
_TINY = 1e-30

Numbers = NDArray[np.int64]


class Turn(NamedTuple):
    """Checks that are updated at once. In the tables, the number of edges stands for those that a shorter row lacks.

    Attributes:
        graph: All bits, and the checks of this turn.
        bits: The bit of each edge.  # shape: (E,)
        checks: The check of each edge, from 0.  # shape: (E,)
        by_check: The edges of each check.  # shape: (C, A)
        by_bit: The edges of each bit.  # shape: (N, D)
        edge_span: Where its edges are among all.
        check_span: Where its checks are among all.
    """

    graph: FactorGraph
    bits: Tensor
    checks: Tensor
    by_check: Tensor
    by_bit: Tensor
    edge_span: slice
    check_span: slice


class Tanner(NamedTuple):
    """The Tanner graph of one or several codes. Checks and edges are in the order of the turns.

    Attributes:
        turns: One for the flooding schedule, several for a layered one.
        order: The number of each check in the code.  # shape: (C,)
        edges: Their number.
    """

    turns: tuple[Turn, ...]
    order: Tensor
    edges: int

    @classmethod
    def of(cls, *codes: Code, turns: int = 1, device: torch.device | str = "cpu") -> Tanner:
        """Put codes side by side. A turn has an equal share of the checks of each, one after the other."""
        label = np.concatenate([np.arange(c.num_checks) * min(turns, c.num_checks) // c.num_checks for c in codes])
        code = Code.disjoint(codes)
        order = np.argsort(label, kind="stable")
        parts, edge, check = [], 0, 0
        for k in range(label.max(initial=0) + 1):
            parts.append(_turn(code, np.flatnonzero(label == k), edge, check, device))
            edge, check = parts[-1].edge_span.stop, parts[-1].check_span.stop
        return cls(tuple(parts), torch.from_numpy(order).to(device), edge)


def _turn(code: Code, chosen: Numbers, edge: int, check: int, device: torch.device | str) -> Turn:
    """The turn of some checks, whose edges and checks are numbered from these."""
    members = [code.bits[code.starts[c] : code.starts[c + 1]] for c in chosen]
    bits = np.concatenate(members)
    starts = np.cumsum([0, *map(len, members)])
    checks = np.repeat(np.arange(len(chosen)), np.diff(starts))
    by_bit = np.argsort(bits, kind="stable")
    graph = FactorGraph(
        code.num_bits, {GROUP: FactorGroup.ragged(torch.from_numpy(bits), torch.from_numpy(starts))}
    ).to(device)
    spans = slice(edge, edge + len(bits)), slice(check, check + len(chosen))
    by_check = _rows(checks, np.arange(len(bits)), len(chosen))
    tables = (bits, checks, by_check, _rows(bits[by_bit], by_bit, code.num_bits))
    on_device = [torch.from_numpy(table).to(device) for table in tables]
    return Turn(graph, on_device[0], on_device[1], on_device[2], on_device[3], *spans)


def _rows(owner: Numbers, number: Numbers, count: int) -> Numbers:
    """A table of the edges of each owner, padded with the number of edges; owners ascend."""
    degree = np.bincount(owner, minlength=count)
    starts = np.concatenate([[0], np.cumsum(degree)])
    table = np.full((count, max(1, degree.max(initial=1))), len(owner))
    table[owner, np.arange(len(owner)) - starts[owner]] = number
    return table


def violations(tanner: Tanner, post: Tensor, syndrome: Tensor) -> Tensor:
    """Whether the decisions violate each check.  # shape: (B, C)"""
    return torch.cat([violated(turn, post, syndrome[:, turn.check_span]) for turn in tanner.turns], 1)


def violated(turn: Turn, post: Tensor, syndrome: Tensor) -> Tensor:
    """Whether the decisions violate each check of a turn.  # shape: (B, C)"""
    ones = gather(select((post < 0).to(syndrome.dtype), turn.bits), turn.by_check).sum(-1)
    return (ones + syndrome) % 2 != 0


def gather(edges: Tensor, rows: Tensor) -> Tensor:
    """The values of edges in rows, zero where a row is shorter.  # shape: (B, E) -> (B, *rows)"""
    values = select(nn.functional.pad(edges, (0, 1)), rows.flatten())
    return values.view(len(edges), *rows.shape)


def select(x: Tensor, index: Tensor) -> Tensor:
    """Entries of the second dimension; unlike that of an index, the backward pass of this does not sort on a GPU."""
    return x.index_select(1, index)


def sum_product(turn: Turn, q: Tensor, syndrome: Tensor) -> Tensor:
    """The messages of sum-product from the checks of a turn.  # shape: (B, E) -> (B, E)"""
    size = torch.tanh(0.5 * q.abs()).clamp(_TINY, _MOST).log()
    negative = (q < 0).to(syndrome.dtype)
    total = select(gather(size, turn.by_check).sum(-1), turn.checks)
    parity = select(gather(negative, turn.by_check).sum(-1) + syndrome, turn.checks) + negative
    product = (total - size).exp().clamp(max=_MOST)
    return torch.where(parity % 2 != 0, -2.0, 2.0) * torch.atanh(product)
