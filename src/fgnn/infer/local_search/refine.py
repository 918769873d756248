"""Iterated local search: shake an answer where it is least sure, search again, and keep what got better."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fgnn.infer.local_search.decode import search
from fgnn.infer.local_search.moves import Moves
from fgnn.infer.tolerances import GAIN
from fgnn.pgm import ModelBatch


@torch.no_grad()
def refine(
    batch: ModelBatch,
    assignment: Tensor,
    scores: Tensor | None = None,
    *,
    rounds: int | None = 4,
    copies: int = 8,
    share: float = 0.04,
    seed: int = 0,
    time_limit: float | None = None,
) -> Tensor:
    """Better assignments near given ones, (B, N); never worse.

    In every round, copies of the best so far have a few variables changed at random, most where the scores are
    undecided, and are repaired and searched as in `decode`. The places where a copy then differs fall into parts that
    share no factor; each part is kept or left by its own gain, so that one round can mend many corners of a large
    model at once.

    Args:
        batch: The models.
        assignment: Where to start, (B, N).
        scores: A network's scores, (B, N, K): say where to shake; without them everywhere alike.
        rounds: How many; None goes on until the time is over.
        copies: Of each model, in a round.
        share: Of the variables, how many are changed in a copy; at least two are.
        seed: Seeds the changes.
        time_limit: Seconds.
    """
    if rounds is None and time_limit is None:
        raise ValueError("Expected rounds or a time limit (got neither)")
    deadline = None if time_limit is None else time.perf_counter() + time_limit
    moves = Moves(batch)
    best = assignment.to(batch.device, torch.int64).clone()
    chance = _chances(batch, scores, share)
    generator = torch.Generator(batch.device).manual_seed(seed)
    owner = torch.arange(len(batch), device=batch.device).repeat(copies)
    done = 0
    while (rounds is None or done < rounds) and (deadline is None or time.perf_counter() < deadline):
        shaken = _shake(batch, best, chance, copies, generator)
        found = search(moves, shaken, owner, deadline=deadline)
        for copy in found.view(copies, len(batch), -1):
            best = merge(batch, best, copy)
        done += 1
    return best


def _chances(batch: ModelBatch, scores: Tensor | None, share: float) -> Tensor:
    """How likely each variable is to be changed, (B, N)."""
    count = batch.num_variables
    doubt = torch.ones(len(batch), count, dtype=torch.float64, device=batch.device)
    if scores is not None:
        sure = scores.double().softmax(-1).amax(-1).nan_to_num(nan=0.0)
        doubt = 1 - sure + 0.02
    doubt = doubt.masked_fill(batch.cardinalities < 2, 0.0)
    wanted = max(2.0, share * count)
    return (wanted * doubt / doubt.sum(1, keepdim=True).clamp(min=1e-12)).clamp(max=0.5)


def _shake(batch: ModelBatch, best: Tensor, chance: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """Copies with some variables in another state, (copies·B, N)."""
    shape = (copies, *best.shape)
    hit = torch.rand(shape, generator=generator, device=best.device, dtype=chance.dtype) < chance
    cards = batch.cardinalities.clamp(min=2)
    step = 1 + (torch.rand(shape, generator=generator, device=best.device) * (cards - 1)).long().clamp(max=cards - 2)
    return torch.where(hit, (best + step) % batch.cardinalities, best).flatten(0, 1)


def merge(batch: ModelBatch, best: Tensor, other: Tensor) -> Tensor:
    """Of two assignments (B, N) the better one, part by part.

    Where they differ, variables that share a factor belong to one part; parts share no factor, so each one's gain is
    its own, and any choice of parts is feasible where both assignments are.
    """
    was, now = batch.score(best), batch.score(other)
    better = (now > was) & (was == -torch.inf)
    best = torch.where(better[:, None], other, best)
    changed = (best != other) & ((now > -torch.inf) & (was > -torch.inf))[:, None]
    if not bool(changed.any()):
        return best
    none = batch.num_variables
    scopes = [t.scopes for t in batch.tables] + [u.scopes for u in batch.budgets]
    label = torch.arange(none, device=best.device).expand_as(best).masked_fill(~changed, none)
    while True:
        before = label
        for s in scopes:
            low = label[:, s].amin(2)  # shape: (B, C)
            spread = low[:, :, None].expand(-1, -1, s.shape[1]).flatten(1)
            index = s.flatten().expand(len(best), -1)
            label = label.scatter_reduce(1, index, spread, "amin").masked_fill(~changed, none)
        if torch.equal(before, label):
            break
    gain = torch.zeros(len(best), none + 1, dtype=torch.float64, device=best.device)
    unary = batch.unary.double()
    step = unary.gather(2, other[..., None]) - unary.gather(2, best[..., None])
    gain.scatter_add_(1, label, step.squeeze(2).nan_to_num())
    for t in batch.tables:
        flat = t.values.flatten(2).double()
        change = _entries(flat, t.shape, t.scopes, other) - _entries(flat, t.shape, t.scopes, best)
        gain.scatter_add_(1, label[:, t.scopes].amin(2), change.nan_to_num())
    return torch.where(changed & (gain.gather(1, label) > GAIN), other, best)


def _entries(flat: Tensor, shape: tuple[int, ...], scopes: Tensor, x: Tensor) -> Tensor:
    cell = torch.zeros(len(x), len(scopes), dtype=torch.int64, device=x.device)
    for axis, states in enumerate(shape):
        cell = cell * states + x[:, scopes[:, axis]]
    return flat.expand(len(x), -1, -1).gather(2, cell[..., None]).squeeze(2)
