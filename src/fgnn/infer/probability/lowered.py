"""Marginals of models with structured factors, by methods that read only tables and counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from fgnn.infer.lowered import counts, reads_structured
from fgnn.infer.probability.result import Beliefs
from fgnn.pgm import ModelBatch
from fgnn.pgm.lowering import Keep, lower


def lowers_beliefs(method: Callable[..., Beliefs], *, keep: Keep = lambda kind, shape: False) -> Callable[..., Beliefs]:
    """Let a method work on tables and counters; the auxiliary variables and tables are dropped from its answer.

    Kinds to ``keep`` stay as they are.
    """

    @reads_structured
    @wraps(method)
    def call(batch: ModelBatch, **options: Any) -> Beliefs:
        if not batch.structured:
            return method(batch, **options)
        beliefs = method(lower(batch, keep=keep).batch, **options)
        unary = beliefs.unary[:, : batch.num_variables, : batch.unary.shape[2]]
        tables = None if beliefs.tables is None else beliefs.tables[: len(batch.tables)]
        return replace(beliefs, unary=unary, tables=tables)

    return call


keeps_counters = partial(lowers_beliefs, keep=counts)  # for methods that read any counter
