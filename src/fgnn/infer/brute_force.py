"""`brute-force`: try every assignment, the reference for all other methods."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from fgnn.infer.certificate import certified, rounding
from fgnn.infer.lowered import reads_structured
from fgnn.infer.solution import Answer, OnProgress
from fgnn.pgm import ModelBatch

# Assignments scored at once, over the whole batch.
_CHUNK = 1 << 16


@reads_structured
@certified
def solve_brute_force(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    max_states: int = 1 << 22,
) -> Answer:
    """Score all joint states in lexicographic order and keep the first best one.

    Args:
        batch: Models of the same structure.
        time_limit: Seconds after which the best assignment so far is returned.
        seed: Not used.
        progress: Not used.
        max_states: The most joint states to try.
    """
    device = batch.device
    best = torch.full((len(batch),), -torch.inf, dtype=torch.float64, device=device)
    assignment = torch.zeros((len(batch), batch.num_variables), dtype=torch.int64, device=device)
    tried = 0
    for states, scores in scored_states(batch, max_states, time_limit):
        value = scores.amax(1)
        # On ties, argmax of floats returns any maximum; argmax of this comparison returns the first.
        first = (scores == value[:, None]).to(torch.int8).argmax(1)
        better = value > best
        best = torch.where(better, value, best)
        assignment = torch.where(better[:, None], states[first], assignment)
        tried += len(states)
    done = tried == math.prod(batch.cardinalities.tolist())
    return Answer.of(
        assignment,
        bound=best * (1 - rounding(batch)) if done else torch.inf,
        converged=done,
        timed_out=not done,
        iterations=tried,
    )


def scored_states(
    batch: ModelBatch, max_states: int, time_limit: float | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """All joint states in lexicographic order and their scores, chunk by chunk, as far as the time allows.

    # shapes: (S, N), (B, S)
    """
    cards = batch.cardinalities.tolist()
    total = math.prod(cards)
    if total > max_states:
        raise ValueError(f"Expected at most max_states={max_states:,} joint states to try one by one (got {total:,})")
    start = time.perf_counter()
    step = max(1, _CHUNK // max(1, len(batch)))
    for at in range(0, total if len(batch) else 0, step):
        if time_limit is not None and time.perf_counter() - start > time_limit:
            return
        states = unravel(torch.arange(at, min(at + step, total), device=batch.device), cards)
        yield states, batch.score(states.expand(len(batch), -1, -1))


def unravel(index: Tensor, cards: list[int]) -> Tensor:
    """The states of assignments by index, the last variable varying fastest.  # shape: (S, N)"""
    columns = []
    for k in reversed(cards):
        columns.append(index % k)
        index = index // k
    return torch.stack(columns[::-1], dim=1) if columns else index.new_zeros((len(index), 0))
