"""What an elimination plan depends on: the structure, and the states that some model of a batch allows."""

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
    """Budgets of one size with the loosest bounds over the batch; ``shared`` where all models have the same bounds."""

    scopes: NDArray[np.int64]  # shape: (C, n)
    lower: NDArray[np.int64]  # shape: (C,)
    upper: NDArray[np.int64]  # shape: (C,)
    shared: NDArray[np.bool_]  # shape: (C,)


@dataclass(frozen=True, eq=False)
class AllowedStates:
    """All that a plan depends on. Batches of one structure and equal ``key`` share a plan."""

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
    """Read a batch's structure and the states that it allows, on the host."""

    def host(tensor: Tensor) -> NDArray[np.int64]:
        return np.asarray(tensor.detach().cpu().numpy())

    tables = tuple(TableShape(host(t.scopes), _finite_somewhere(t.distinct("values"))) for t in batch.tables)
    budgets = []
    for u in batch.budgets:
        at_least, at_most = u.distinct("at_least"), u.distinct("at_most")
        lower, tightest = host(at_least.amin(0)), host(at_least.amax(0))
        upper, lowest = host(at_most.amax(0)), host(at_most.amin(0))
        budgets.append(BudgetShape(host(u.scopes), lower, upper, (lower == tightest) & (upper == lowest)))
    return AllowedStates(host(batch.cardinalities), _finite_somewhere(batch.unary), tables, tuple(budgets))


def _finite_somewhere(values: Tensor) -> NDArray[np.bool_]:
    best = values.detach()[0] if len(values) == 1 else values.detach().amax(0)
    return np.asarray((best > -torch.inf).cpu().numpy())
