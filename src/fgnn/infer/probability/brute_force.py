"""`brute-force`: sum over every assignment, the reference for all other methods."""

from __future__ import annotations

import math

import torch

from fgnn.infer.brute_force import scored_states
from fgnn.infer.lowered import reads_structured
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch


@reads_structured
def marginals_brute_force(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    tables: bool = False,
    max_states: int = 1 << 22,
) -> Beliefs:
    """Add up the probabilities of all joint states.

    Args:
        batch: Models of the same structure.
        time_limit: Seconds, after which there is no answer.
        seed: Not used.
        progress: Not used.
        tables: Whether to return the marginals of tables too.
        max_states: The most joint states to try.
    """
    device, cards = batch.device, batch.cardinalities.tolist()
    pieces = list(scored_states(batch, max_states, time_limit))
    done = sum(len(states) for states, _ in pieces) == math.prod(cards)
    log_z = torch.full((len(batch),), -torch.inf, dtype=torch.float64, device=device)
    for _, scores in pieces:
        log_z = torch.logaddexp(log_z, scores.logsumexp(1))
    unary = torch.zeros(batch.unary.shape, dtype=torch.float64, device=device)
    by_table = [torch.zeros(t.values.shape, dtype=torch.float64, device=device) for t in batch.tables]
    reference = log_z.clamp_min(torch.finfo(torch.float64).min)[:, None]
    for states, scores in pieces:
        p = torch.exp(scores - reference)  # shape: (B, S)
        for i in range(len(cards)):
            unary[:, i].index_add_(1, states[:, i], p)
        for t, target in zip(batch.tables, by_table, strict=True):
            for c, scope in enumerate(t.scopes.tolist()):
                cell = torch.zeros(len(states), dtype=torch.int64, device=device)
                for axis, variable in enumerate(scope):
                    cell = cell * t.shape[axis] + states[:, variable]
                target[:, c].view(len(batch), -1).index_add_(1, cell, p)
    log_z = log_z if done else torch.full_like(log_z, torch.nan)  # a part of the sum says nothing about the rest
    return Beliefs.of(unary, log_z, exact=done, converged=done, timed_out=not done, tables=tuple(by_table))
