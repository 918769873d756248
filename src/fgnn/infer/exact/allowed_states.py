"""The input of an elimination plan: the structure, and the states that some model of a batch allows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import ModelBatch


@dataclass(frozen=True, eq=False)
class TableShape:
    """Tables of one shape, and which entries are finite in at least one model."""

    scopes: NDArray[np.int64]  # shape: (C, A)
    allowed: NDArray[np.bool_]  # shape: (C, k_1, ..., k_A)


@dataclass(frozen=True, eq=False)
class BudgetShape:
    """Budgets of one size with the loosest bounds over the batch; ``shared`` if all models have the same bounds."""

    scopes: NDArray[np.int64]  # shape: (C, n)
    lower: NDArray[np.int64]  # shape: (C,)
    upper: NDArray[np.int64]  # shape: (C,)
    shared: NDArray[np.bool_]  # shape: (C,)


@dataclass(frozen=True, eq=False)
class AllowedStates:
    """Everything a plan depends on. Batches of one structure with equal ``key`` share a plan."""

    cardinalities: NDArray[np.int64]  # shape: (N,)
    live: NDArray[np.bool_]  # shape: (N, K), the states that some model allows
    tables: tuple[TableShape, ...]
    budgets: tuple[BudgetShape, ...]

    @cached_property
    def key(self) -> bytes:
        digest = hashlib.blake2b(digest_size=24)
        arrays: list[NDArray[Any]] = [self.live, *(t.allowed for t in self.tables)]
        arrays += [a for b in self.budgets for a in (b.lower, b.upper, b.shared)]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


def allowed_states(batch: ModelBatch) -> AllowedStates:
    """Read the structure of a batch and the states it allows, on the host."""
    structure = batch.structure
    cards, scopes = structure.derived(
        "host scopes", lambda: (_host(batch.cardinalities), [_host(g.scopes) for g in structure.groups.values()])
    )
    tables = tuple(
        TableShape(s, _finite_somewhere(t.distinct("values"))) for s, t in zip(scopes, batch.tables, strict=False)
    )
    budgets = []
    for s, u in zip(scopes[len(tables) :], batch.budgets, strict=True):
        at_least, at_most = u.distinct("at_least"), u.distinct("at_most")
        lower, highest_lower = _host(at_least.amin(0)), _host(at_least.amax(0))
        upper, lowest_upper = _host(at_most.amax(0)), _host(at_most.amin(0))
        budgets.append(BudgetShape(s, lower, upper, (lower == highest_lower) & (upper == lowest_upper)))
    return AllowedStates(cards, _finite_somewhere(batch.unary), tables, tuple(budgets))


def _host(tensor: Tensor) -> NDArray[np.int64]:
    return np.asarray(tensor.detach().cpu().numpy())


def _finite_somewhere(values: Tensor) -> NDArray[np.bool_]:
    best = values.detach()[0] if len(values) == 1 else values.detach().amax(0)
    return np.asarray((best > -torch.inf).cpu().numpy())
