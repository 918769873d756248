"""What the models of a batch share: variables, scopes, and which states some model allows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

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
class Structure:
    """All that a plan may depend on. Two batches of equal ``key`` can share one plan."""

    cardinalities: NDArray[np.int64]  # shape: (N,)
    live: NDArray[np.bool_]  # shape: (N, K), the states that some model allows
    tables: tuple[TableShape, ...]
    budgets: tuple[BudgetShape, ...]

    @cached_property
    def key(self) -> bytes:
        digest = hashlib.blake2b(digest_size=24)
        arrays = [self.cardinalities, self.live]
        arrays += [a for t in self.tables for a in (t.scopes, t.allowed)]
        arrays += [a for b in self.budgets for a in (b.scopes, b.lower, b.upper, b.shared)]
        for array in arrays:
            digest.update(repr(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()


def read_structure(batch: ModelBatch) -> Structure:
    """The structure of a batch, on the CPU."""

    def host(tensor: Tensor) -> NDArray[np.int64]:
        return np.asarray(tensor.detach().cpu().numpy())

    tables = tuple(TableShape(host(t.scopes), _finite_somewhere(t.values)) for t in batch.tables)
    budgets = []
    for u in batch.budgets:
        at_least, at_most = _distinct(u.at_least), _distinct(u.at_most)
        lower, tightest = host(at_least.amin(0)), host(at_least.amax(0))
        upper, lowest = host(at_most.amax(0)), host(at_most.amin(0))
        budgets.append(BudgetShape(host(u.scopes), lower, upper, (lower == tightest) & (upper == lowest)))
    return Structure(host(batch.cardinalities), _finite_somewhere(batch.unary), tables, tuple(budgets))


def _distinct(values: Tensor) -> Tensor:
    """A tensor that all models share, once."""
    return values[:1] if values.stride(0) == 0 else values


def _finite_somewhere(values: Tensor) -> NDArray[np.bool_]:
    best = _distinct(values.detach())
    best = best[0] if len(best) == 1 else best.amax(0)
    return np.asarray((best > -torch.inf).cpu().numpy())
