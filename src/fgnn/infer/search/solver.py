"""`search`: the best assignment within a time, for models too wide for elimination."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.certificate import certified
from fgnn.infer.counted import counts_plainly
from fgnn.infer.local_search.decode import decode
from fgnn.infer.lowered import lowers
from fgnn.infer.reporter import Reporter
from fgnn.infer.search.batched import BatchedSearch
from fgnn.infer.search.ready import Kernels
from fgnn.infer.solution import Answer, OnProgress
from fgnn.pgm import ModelBatch
from fgnn.pgm.lowering import Keep
from fgnn.runtime.nvrtc import can_compile

MOVES = ("anneal", "trees", "subgraphs", "tabu")
DEFAULT_MOVES = ("anneal", "subgraphs", "tabu")
_ROUNDS = 50  # where neither rounds nor a time limit is given
_PATIENCE = 1.0  # seconds that compiled loops may take to load before something else is done in the meantime
_MOST_MOVES = 1 << 22  # of single variables, for what is done in the meantime


def _kept(batch: ModelBatch, time_limit: float | None) -> Keep:
    """Counters; on a GPU none, since its kernel reads tables alone."""
    return counts_plainly if batch.device.type == "cpu" else lambda kind, shape: False


@partial(lowers, local=True, keep=_kept)
@certified
def solve_search(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    rounds: int | None = None,
    workers: int | None = None,
    moves: Sequence[str] = DEFAULT_MOVES,
    starts: Sequence[Tensor] = (),
    guide: Tensor | None = None,
    batched: bool | None = None,
) -> Answer:
    """Search for the best assignment until the time is over.

    Threads share a pool of the best assignments. Each works in slices of some 15 ms at what has gained most lately:

    - ``anneal``: annealing in ever longer runs, from scratch or from an elite assignment;
    - ``subgraphs``: free the variables of a random induced subgraph that elimination can solve, and solve it exactly
      given the rest; when small subgraphs gain nothing any more, take larger ones, then disturb an elite and go on;
    - ``trees``: the same with forests alone;
    - ``tabu``: move a variable in conflict, the best one first even if that loses, and do not move it back for a while.
      It is used, and most of all, where nearly all factors can be satisfied, as in SAT and colouring.

    Results are crossed with the elites: the variables in which two assignments differ fall into components that share
    no factor, and the better of the two is kept in each. What is forbidden costs a penalty that adapts, so that the
    search can pass through infeasible assignments; it returns a feasible one if it has found any.

    With ``rounds`` and ``workers`` the seed determines the result; with a time limit it does not. The first use in an
    installation compiles loops for some 20 s; meanwhile a slower local search runs.

    Args:
        batch: Models, searched one after the other.
        time_limit: Seconds for all of them.
        seed: Seeds the random choices.
        progress: Receives the best score, about twice a second.
        rounds: Slices of each worker; by default as many as the time allows, or 50 without a time limit.
        workers: Threads per model; by default as many as torch uses.
        moves: One or more of ``anneal``, ``trees``, ``subgraphs`` and ``tabu``.
        starts: Assignments (B, N) to begin with.
        guide: A network's scores (B, N, K) of all states. Subgraphs are freed where it doubts the assignment at hand,
            and some climbs start from samples of it. `fgnn.solve(model, "fgnn", search=True)` provides them.
        batched: Whether to search all models at once, annealing first, then subgraphs; by default
            on a GPU. ``moves`` and ``workers`` do not apply then.
    """
    if not moves or set(moves) - set(MOVES):
        raise ValueError(f"Expected moves among {', '.join(MOVES)} (got {tuple(moves)})")
    for name, value in (("rounds", rounds), ("workers", workers)):
        if value is not None and value < 1:
            raise ValueError(f"Expected {name} of at least 1 (got {value})")
    if guide is not None and (guide.dim() != 3 or len(guide) != len(batch)):
        raise ValueError(f"Expected a guide of shape (B, N, K) for {len(batch)} models (got {tuple(guide.shape)})")
    reporter = Reporter("search", progress)
    began = time.perf_counter()
    if rounds is None and time_limit is None:
        rounds = _ROUNDS
    deadline = began + (time_limit if time_limit is not None else float("inf"))
    best = batch.unary.argmax(2)
    if starts:
        best = _better(batch, [best, *(s.to(best) for s in starts)])
    interrupted = False
    info: dict[str, Any] = {"slices": {}}
    if len(batch) and (batched if batched is not None else batch.device.type != "cpu"):
        best = _all_at_once(batch, best, seed, rounds, reporter, deadline)
    elif len(batch):
        kernels = Kernels.load()
        if not kernels.wait(min(_PATIENCE, deadline - time.perf_counter()) if time_limit is not None else None):
            best = _meanwhile(batch, best, seed, deadline)
            kernels.wait(deadline - time.perf_counter())
        if kernels.wait(0.0):
            from fgnn.infer.search.engine import Engine

            engine = Engine(seed, rounds, workers or torch.get_num_threads(), moves, reporter, guide)
            best, interrupted = engine.run(batch, best, deadline)
            info["slices"] = engine.slices
        else:
            info["compiling"] = True
    late = time_limit is not None and time.perf_counter() >= deadline
    done = batch.score(best) == 0.0  # no standard score is higher
    return Answer.of(
        best,
        bound=0.0,
        converged=done,
        timed_out=~done if late or interrupted else torch.zeros_like(done),
        info={**info, "interrupted": interrupted},
    )


def _all_at_once(
    batch: ModelBatch, best: Tensor, seed: int, rounds: int | None, reporter: Reporter, deadline: float
) -> Tensor:
    """Search all models at once: by the kernel where it can read them, else by tensor operations."""
    if batch.device.type == "cuda" and can_compile():
        from fgnn.infer.search.sampler import unsupported

        if unsupported(batch) is None:
            from fgnn.infer.search.sampled import SampledSearch

            return SampledSearch(batch, seed, reporter, rounds).run(best, deadline)
    return BatchedSearch(batch, seed, reporter, rounds).run(best, deadline)


def _better(batch: ModelBatch, points: Sequence[Tensor]) -> Tensor:
    """The best of several assignments of every model."""
    stacked = torch.stack(list(points), 1)  # shape: (B, S, N)
    return stacked[torch.arange(len(batch), device=batch.device), batch.score(stacked).argmax(1)]


def _meanwhile(batch: ModelBatch, start: Tensor, seed: int, deadline: float) -> Tensor:
    """What can be done without compiled loops, for half of the time at most."""
    left = deadline - time.perf_counter()
    if left <= 0 or batch.unary[0].numel() > _MOST_MOVES:
        return start
    return _better(batch, [start, decode(batch, starts=[start], seed=seed, time_limit=left / 2)])
