"""`brute-force`: try every assignment, the reference for all other methods."""

from __future__ import annotations

import math
import time

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
    cards = batch.cardinalities.tolist()
    total = math.prod(cards)
    if total > max_states:
        raise ValueError(f"Expected at most max_states={max_states:,} joint states to try one by one (got {total:,})")
    start = time.perf_counter()
    device = batch.device
    best = torch.full((len(batch),), -torch.inf, dtype=torch.float64, device=device)
    assignment = torch.zeros((len(batch), batch.num_variables), dtype=torch.int64, device=device)
    step = max(1, _CHUNK // max(1, len(batch)))
    tried = 0
    while tried < total and len(batch):
        if time_limit is not None and time.perf_counter() - start > time_limit:
            break
        states = unravel(torch.arange(tried, min(tried + step, total), device=device), cards)  # shape: (S, N)
        scores = batch.score(states.expand(len(batch), -1, -1))  # shape: (B, S)
        value = scores.amax(1)
        # On ties, argmax of floats returns any maximum; argmax of this comparison returns the first.
        first = (scores == value[:, None]).to(torch.int8).argmax(1)
        better = value > best
        best = torch.where(better, value, best)
        assignment = torch.where(better[:, None], states[first], assignment)
        tried += len(states)
    done = tried >= total
    return Answer.of(
        assignment,
        bound=best * (1 - rounding(batch)) if done else torch.inf,
        converged=done,
        timed_out=not done,
        iterations=tried,
    )


def unravel(index: Tensor, cards: list[int]) -> Tensor:
    """The states of assignments by index, the last variable varying fastest.  # shape: (S, N)"""
    columns = []
    for k in reversed(cards):
        columns.append(index % k)
        index = index // k
    return torch.stack(columns[::-1], dim=1) if columns else index.new_zeros((len(index), 0))
