"""Iterated local search: perturb an assignment where it is least certain, search again, keep improvements."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fgnn.infer.local_search.decode import search
from fgnn.infer.local_search.moves import Moves
from fgnn.infer.lowered import counts
from fgnn.pgm import ModelBatch
from fgnn.pgm.lowering import lower


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
    """Improve assignments (B, N) by iterated local search; the result is never worse.

    Each round perturbs copies of the best assignment so far, mostly where the scores are undecided, then repairs and
    searches them as `decode` does. The variables in which a copy then differs fall into components that share no
    factor. Each component is accepted by its own gain, so that one round can improve many places of a large model.

    Args:
        batch: The models.
        assignment: Starting points, (B, N).
        scores: A network's scores, (B, N, K): where to perturb; uniformly without them.
        rounds: Number of rounds; None continues until the time limit.
        copies: Copies of each model in a round.
        share: Fraction of the variables changed in a copy; at least two variables are.
        seed: Seed of the perturbations.
        time_limit: Seconds.
    """
    if rounds is None and time_limit is None:
        raise ValueError("Expected rounds or a time limit (got neither)")
    if not all(counts(f.kind, f.shape) for f in batch.structured):
        lowered = lower(batch, local=True, keep=counts)
        begin = lowered.complete(assignment.to(batch.device, torch.int64))
        scores = None if scores is None else _padded(scores, lowered.batch)
        refined = refine(
            lowered.batch, begin, scores, rounds=rounds, copies=copies, share=share, seed=seed, time_limit=time_limit
        )
        return refined[:, : batch.num_variables]  # auxiliary variables have states that fit these at least as well
    deadline = None if time_limit is None else time.perf_counter() + time_limit
    moves = Moves(batch)
    best = assignment.to(batch.device, torch.int64).clone()
    chance = _change_probability(batch, scores, share)
    generator = torch.Generator(batch.device).manual_seed(seed)
    owner = torch.arange(len(batch), device=batch.device).repeat(copies)
    done = 0
    while (rounds is None or done < rounds) and (deadline is None or time.perf_counter() < deadline):
        perturbed = _perturb(batch, best, chance, copies, generator)
        improved = search(moves, perturbed, owner, deadline=deadline)
        for copy in improved.view(copies, len(batch), -1):
            best = merge(moves, best, copy)
        done += 1
    return best


def _padded(scores: Tensor, batch: ModelBatch) -> Tensor:
    """Scores with zeros for variables and states that were added."""
    states, variables = batch.unary.shape[2] - scores.shape[2], batch.num_variables - scores.shape[1]
    return torch.nn.functional.pad(scores, (0, states, 0, variables))


def _change_probability(batch: ModelBatch, scores: Tensor | None, share: float) -> Tensor:
    """The probability with which each variable is changed, (B, N)."""
    count = batch.num_variables
    doubt = torch.ones(len(batch), count, dtype=torch.float64, device=batch.device)
    if scores is not None:
        doubt = 1 - scores.double().softmax(-1).amax(-1).nan_to_num(nan=0.0) + 0.02
    doubt = doubt.masked_fill(batch.cardinalities < 2, 0.0)
    wanted = max(2.0, share * count)
    return (wanted * doubt / doubt.sum(1, keepdim=True).clamp(min=1e-12)).clamp(max=0.5)


def _perturb(batch: ModelBatch, best: Tensor, chance: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """Copies with some variables in another state, (copies·B, N)."""
    shape = (copies, *best.shape)
    hit = torch.rand(shape, generator=generator, device=best.device, dtype=chance.dtype) < chance
    cards = batch.cardinalities.clamp(min=2)
    step = 1 + (torch.rand(shape, generator=generator, device=best.device) * (cards - 1)).long().clamp(max=cards - 2)
    return torch.where(hit, (best + step) % batch.cardinalities, best).flatten(0, 1)


def merge(moves: Moves, best: Tensor, other: Tensor) -> Tensor:
    """The better of two assignments (B, N) of a batch, component by component.

    Variables in which the assignments differ are in one component if they share a factor. Components share no factor,
    so their gains are independent, and any choice of components is feasible if both assignments are.
    """
    batch = moves.batch
    was, now = batch.score(best), batch.score(other)
    better = (now > was) & (was == -torch.inf)
    best = torch.where(better[:, None], other, best)
    changed = (best != other) & ((now > -torch.inf) & (was > -torch.inf))[:, None]
    if not bool(changed.any()):
        return best
    none = batch.num_variables
    scopes = [f.scopes for f in batch.factors]
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
    for members, change in moves.gains(best, other, torch.arange(len(best), device=best.device)):
        gain.scatter_add_(1, label[:, members].amin(2), change.double())
    return torch.where(changed & (gain.gather(1, label) > moves.least_gain[:, None]), other, best)
