"""`exact`: marginals by variable elimination."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fgnn.infer.exact.log_sum import LogSum
from fgnn.infer.exact.order import OutOfTime
from fgnn.infer.exact.solver import Clock
from fgnn.infer.probability.chain import chain_log_z, chain_marginals
from fgnn.infer.probability.elimination import Elimination
from fgnn.infer.probability.lowered import keeps_counters
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch


@keeps_counters
def marginals_exact(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    tables: bool = False,
    max_states: int | None = None,
    memory: int | None = None,
    tries: int = 16,
    dtype: torch.dtype = torch.float64,
) -> Beliefs:
    r"""Eliminate the variables one by one, :math:`\mu(x_{N(v)}) = \log \sum_{x_v} \exp \sum_{c \ni v} \theta_c(x_c)`,
    then pass probabilities back: all marginals cost about two eliminations.

    The plan is that of ``solve(method="exact")``: steps over feasible states only, counters as running sums.

    Args:
        batch: Models of one structure.
        time_limit: Seconds; models not done by then are ``timed_out``.
        seed: Seed of the random restarts of the order.
        progress: Called about twice a second.
        tables: Whether to return the marginals of tables too.
        max_states: Upper limit on the joint states of a step; by default what memory and time allow for one model on
            the CPU, else 2^24.
        memory: Upper limit on the memory in bytes, as for ``solve``.
        tries: Random restarts of the order, if min-fill's is costly.
        dtype: Of the sums.

    Raises:
        TooLarge: A `ValueError` with the induced width, the states and the memory that would be needed.
    """
    chain = chain_marginals(batch, dtype, tables=tables)
    if chain is not None:
        return Beliefs.of(chain[1], chain[0], exact=True, tables=None if chain[2] is None else (chain[2],))
    clock = Clock(time_limit, progress, len(batch))
    unary = torch.zeros(batch.unary.shape, dtype=dtype, device=batch.device)
    by_table = tuple(torch.zeros(t.values.shape, dtype=dtype, device=batch.device) for t in batch.tables)
    log_z = torch.full((len(batch),), torch.nan, dtype=torch.float64, device=batch.device)
    done = torch.zeros(len(batch), dtype=torch.bool, device=batch.device)
    info: dict[str, Any] = {}
    # The gradient for a shared table is the sum over the models; its marginals are wanted for each model.
    apart = replace(batch, tables=tuple(replace(t, shared=frozenset()) for t in batch.tables)) if tables else batch

    def work(part: slice, run: LogSum) -> None:
        log_z[part] = run.log_z.double()
        unary[part], groups = run.gradient(torch.ones_like(run.log_z), wanted=None if tables else {})
        for target, group in zip(by_table, groups, strict=False):
            target[part] = group
        done[part] = True

    try:
        options: dict[str, Any] = {"seed": seed, "max_states": max_states, "memory": memory, "tries": tries}
        elimination = Elimination.of(apart, clock, dtype=dtype, **options)
        info = elimination.info
        if elimination.impossible:
            log_z.fill_(-torch.inf)
            done.fill_(True)
        elimination.each_slice(work)
    except OutOfTime:
        pass
    return Beliefs.of(
        unary,
        log_z,
        exact=done,
        converged=done,
        timed_out=~done,
        tables=by_table if tables else None,
        info=info,
    )


@keeps_counters
def log_partition_exact(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    max_states: int | None = None,
    memory: int | None = None,
    tries: int = 16,
    dtype: torch.dtype = torch.float64,
) -> Beliefs:
    """log Z alone, differentiable in every potential, for the cost of one elimination; arguments as above.

    The probabilities are left empty. A model has no value, NaN, if the time limit was reached first.
    """
    clock = Clock(time_limit, progress, len(batch))
    options: dict[str, Any] = {"seed": seed, "max_states": max_states, "memory": memory, "tries": tries}
    info: dict[str, Any] = {}
    empty = torch.zeros(len(batch), 0, 0, dtype=dtype, device=batch.device)
    log_z = chain_log_z(batch, dtype)
    if log_z is not None:
        return Beliefs.of(empty, log_z, exact=True)
    try:
        elimination = Elimination.of(batch, clock, dtype=dtype, **options)
        log_z, done, info = elimination.log_z(), True, elimination.info
    except OutOfTime:
        log_z, done = torch.full((len(batch),), torch.nan, dtype=torch.float64, device=batch.device), False
    return Beliefs.of(empty, log_z, exact=done, converged=done, timed_out=not done, info=info)
