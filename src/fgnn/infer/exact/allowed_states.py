"""The input of an elimination plan: the structure, and the states that some model of a batch allows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import ModelBatch
from fgnn.pgm.factors import Counter
from fgnn.pgm.group_batches import CountedBatch


@dataclass(frozen=True, eq=False)
class TableShape:
    """Tables of one shape, and which entries are finite in at least one model."""

    scopes: NDArray[np.int64]  # shape: (C, A)
    allowed: NDArray[np.bool_]  # shape: (C, k_1, ..., k_A)


@dataclass(frozen=True, eq=False)
class CounterShape:
    """Factors with one counter, and the sums that at least one model allows: those in ``allowed`` (None: all) from
    ``lower`` to ``upper``. A ``plain`` factor has log-potential 0 there and ``-inf`` elsewhere, in every model."""

    scopes: NDArray[np.int64]  # shape: (C, n)
    counter: Counter
    lower: NDArray[np.int64]  # shape: (C,)
    upper: NDArray[np.int64]  # shape: (C,)
    allowed: NDArray[np.bool_] | None  # shape: (C, T)
    plain: NDArray[np.bool_]  # shape: (C,)


@dataclass(frozen=True, eq=False)
class AllowedStates:
    """Everything a plan depends on. Batches of one structure with equal ``key`` share a plan."""

    cardinalities: NDArray[np.int64]  # shape: (N,)
    live: NDArray[np.bool_]  # shape: (N, K), the states that some model allows
    tables: tuple[TableShape, ...]
    counters: tuple[CounterShape, ...]

    @cached_property
    def key(self) -> bytes:
        digest = hashlib.blake2b(digest_size=24)
        arrays: list[NDArray[Any]] = [self.live, *(t.allowed for t in self.tables)]
        for c in self.counters:
            digest.update(_weights_key(c.counter))
            arrays += [c.lower, c.upper, c.plain] + ([] if c.allowed is None else [c.allowed])
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        return digest.digest()


def allowed_states(batch: ModelBatch) -> AllowedStates:
    """Read the structure of a batch of tables and counters and the states it allows, on the host."""
    structure = batch.structure
    cards, scopes = structure.derived(
        "host scopes", lambda: (_host(batch.cardinalities), [_host(g.scopes) for g in structure.groups.values()])
    )
    tables = tuple(
        TableShape(s, _finite_somewhere(t.distinct("values"))) for s, t in zip(scopes, batch.tables, strict=False)
    )
    counters = tuple(_counter_shape(s, group) for s, group in zip(scopes[len(tables) :], batch.counted, strict=True))
    return AllowedStates(cards, _finite_somewhere(batch.unary), tables, counters)


def _counter_shape(scopes: NDArray[np.int64], group: CountedBatch) -> CounterShape:
    counter = group.counter
    assert counter is not None
    if (bounds := group.bounds()) is not None:
        low, high = bounds
        lower, highest_lower = _host(low.amin(0)), _host(low.amax(0))
        upper, lowest_upper = _host(high.amax(0)), _host(high.amin(0))
        return CounterShape(scopes, counter, lower, upper, None, (lower == highest_lower) & (upper == lowest_upper))
    values = group.by_sum(torch.float64)  # shape: (B or 1, C, T)
    same = ((values == values[:1]) & ((values == 0) | (values == -torch.inf))).all(0).all(1)
    allowed = _finite_somewhere(values)
    last = allowed.shape[1] - 1
    some = allowed.any(1)
    lower = np.where(some, allowed.argmax(1), last + 1)
    upper = np.where(some, last - allowed[:, ::-1].argmax(1), -1)
    # Potentials that are being learned are numbers, even where they are 0.
    plain = _host(same) & (not values.requires_grad)
    return CounterShape(scopes, counter, lower, upper, allowed, plain)


@lru_cache(maxsize=1024)
def _weights_key(counter: Counter) -> bytes:
    return b"ones" if counter.counts_ones else repr((counter.weights, counter.modulus)).encode()


def _host(tensor: Tensor) -> NDArray[Any]:
    return np.asarray(tensor.detach().cpu().numpy())


def _finite_somewhere(values: Tensor) -> NDArray[np.bool_]:
    best = values.detach()[0] if len(values) == 1 else values.detach().amax(0)
    return np.asarray((best > -torch.inf).cpu().numpy())
