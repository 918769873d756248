"""Turn a network's scores into a feasible assignment: repair, then local search on the true score."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.infer.local_search.moves import Moves
from fgnn.infer.lowered import counts
from fgnn.pgm import ModelBatch
from fgnn.pgm.lowering import lower

_ENTRIES = 1 << 24  # rows are processed in slices of about this many entries


@torch.no_grad()
def decode(
    batch: ModelBatch,
    scores: Tensor | None = None,
    *,
    starts: Sequence[Tensor] = (),
    samples: int = 0,
    seed: int = 0,
    pairs: bool = True,
    max_steps: int = 10_000,
    time_limit: float | None = None,
) -> Tensor:
    """Locally optimal assignments (B, N): no change of one variable, or of two in one factor, improves them.

    Each starting point is first repaired: as long as it takes ``-inf`` entries or sums, the moves that repair most per
    unit of lost score are made. Then moves that raise the true score are made until none is left. Moves
    that share no factor are made in the same step. Returns the best end point, which is never worse than the best
    starting point, and feasible if any point on the way was.

    Args:
        batch: The models.
        scores: A network's scores or log-marginals, (B, N, K): its argmax is a starting point, repaired once by the
            loss in these scores and once by the loss in the true score.
        starts: Further starting points, each (B, N).
        samples: Number of further starting points to sample, with the scores as log-probabilities.
        seed: Seed of the samples.
        pairs: Whether to try pair moves where no single move helps.
        max_steps: Upper limit on the steps of repair and search together.
        time_limit: Seconds after which the best point so far is returned.
    """
    deadline = None if time_limit is None else time.perf_counter() + time_limit
    own = batch.num_variables
    if batch.structured:
        lowered = lower(batch, local=True, keep=counts)
        scores = None if scores is None else _with_auxiliary(scores, batch, lowered.batch)
        batch, starts = lowered.batch, [lowered.complete(s.to(batch.device, torch.int64)) for s in starts]
    moves = Moves(batch, max_pairs=(1 << 20) if pairs else 0)
    points, by_score = _starting_points(batch, scores, starts, samples, seed)
    best = torch.stack(points, 1)  # shape: (B, S, N)
    before = batch.score(best)
    finite = None if scores is None else _finite(scores)
    count, many = len(batch), len(points)
    # The argmax is there twice, for two kinds of repair; where it is feasible, one of them is enough.
    wanted = torch.ones_like(before, dtype=torch.bool)
    if scores is not None:
        wanted[:, len(starts)] = before[:, len(starts)] == -torch.inf
        drawn = best[:, len(starts) + 2 :]  # samples equal to the argmax add nothing
        wanted[:, len(starts) + 2 :] = (drawn != best[:, len(starts), None]).any(2)
    work = wanted.flatten().nonzero().squeeze(1)
    end = best.flatten(0, 1).clone()
    step = max(1, _ENTRIES // moves.row_size)
    for rows in torch.split(work, step):
        owner = rows // many
        guide = None
        if finite is not None:
            guide = finite[owner], torch.tensor(by_score, device=batch.device)[rows % many]
        end[rows] = _search(moves, end[rows], owner, guide, max_steps, deadline)
    end = end.view_as(best)
    if many and not bool((batch.score(end) > -torch.inf).any(1).all()):
        end = _from_zero(moves, batch, end, max_steps, deadline)
    best = torch.cat([best, end], 1)
    after = torch.cat([before, batch.score(end)], 1)
    return best[torch.arange(count, device=batch.device), after.argmax(1)][:, :own]


def _with_auxiliary(scores: Tensor, batch: ModelBatch, lowered: ModelBatch) -> Tensor:
    """Scores (B, N, K) with zeros for the auxiliary variables."""
    if scores.shape != batch.unary.shape:
        raise ValueError(f"Expected scores of shape {tuple(batch.unary.shape)} (got {tuple(scores.shape)})")
    padding = (a - b for a, b in zip(lowered.unary.shape, scores.shape, strict=True))
    _, variables, states = padding
    return torch.nn.functional.pad(scores, (0, states, 0, variables))


def _starting_points(
    batch: ModelBatch, scores: Tensor | None, starts: Sequence[Tensor], samples: int, seed: int
) -> tuple[list[Tensor], list[bool]]:
    """The points, and for each whether its repair follows the network's scores instead of the true score."""
    shape = (len(batch), batch.num_variables)
    points = [s.to(batch.device, torch.int64) for s in starts]
    for s in points:
        if tuple(s.shape) != shape:
            raise ValueError(f"Expected starting points of shape {shape} (got {tuple(s.shape)})")
    by_score = [False] * len(points)
    if scores is None:
        return (points, by_score) if points else ([batch.unary.argmax(2)], [False])
    if scores.shape != batch.unary.shape:
        raise ValueError(f"Expected scores of shape {tuple(batch.unary.shape)} (got {tuple(scores.shape)})")
    allowed = _finite(scores).masked_fill(batch.unary == -torch.inf, -torch.inf)
    points += [allowed.argmax(2)] * 2
    by_score += [True, False]
    generator = torch.Generator(batch.device).manual_seed(seed)
    for _ in range(samples):
        noise = torch.empty_like(allowed).exponential_(generator=generator)
        points.append((allowed - noise.log()).argmax(2))  # Gumbel noise: a sample of the softmax
        by_score.append(False)
    return points, by_score


def search(moves: Moves, x: Tensor, owner: Tensor, *, max_steps: int = 10_000, deadline: float | None = None) -> Tensor:
    """Repair and improve rows x (R, N) of the models ``owner`` (R,), in slices that bound memory."""
    step = max(1, _ENTRIES // moves.row_size)
    slices = zip(torch.split(x, step), torch.split(owner, step), strict=True)
    return torch.cat([_search(moves, a, b, None, max_steps, deadline) for a, b in slices])


def _search(
    moves: Moves,
    x: Tensor,
    owner: Tensor,
    guide: tuple[Tensor, Tensor] | None,
    max_steps: int,
    deadline: float | None,
) -> Tensor:
    """Repair and improve rows x (R, N) until no move helps. Finished rows are removed from the computation.

    ``guide`` holds a network's scores (R, N, K), and which rows (R,) are repaired by the loss in these.
    """
    x, done = x.clone(), x.clone()
    rows = torch.arange(len(x), device=x.device)
    broken = moves.broken(x, owner)
    for _ in range(max_steps):
        if not len(rows) or (deadline is not None and time.perf_counter() > deadline):
            break
        gain, change = moves.single(x, owner)
        least = moves.least_gain[owner]
        worth = _worth(gain, change, broken, _repair_gain(moves, x, gain, guide), least)
        moved = _apply_single(moves, x, worth, change, broken)
        stuck = ~moved
        if len(moves.pairs) and bool(stuck.any()):
            which = stuck.nonzero().squeeze(1)
            stuck_x, stuck_broken = x[which], broken[which]
            gains, changes = moves.pair(stuck_x, owner[which], gain[which], change[which])
            worths = _worth(gains, changes, stuck_broken, gains, least[which])
            moved[which] = _apply_pair(moves, stuck_x, worths, changes, stuck_broken)
            x[which], broken[which] = stuck_x, stuck_broken
        if not bool(moved.all()):
            done[rows[~moved]] = x[~moved]
            x, owner, rows, broken = x[moved], owner[moved], rows[moved], broken[moved]
            if guide is not None:
                guide = guide[0][moved], guide[1][moved]
    done[rows] = x
    return done


def _worth(gain: Tensor, change: Tensor, broken: Tensor, repair_gain: Tensor, least: Tensor) -> Tensor:
    """The priority of each move, ``-inf`` where it is not allowed.

    An infeasible row takes only moves that repair something, by ``repair_gain`` per unit repaired. A feasible row takes
    only moves that break nothing and raise the score by more than ``least`` (R,).
    """
    infeasible, least = (v.view(-1, *(1,) * (gain.dim() - 1)) for v in (broken > 0, least))
    repair = repair_gain / (-change).clamp(min=1)
    allowed = torch.where(infeasible, change < 0, (change <= 0) & (gain > least)) & (gain > -torch.inf)
    return torch.where(infeasible, repair, gain).masked_fill_(~allowed, -torch.inf)


def _repair_gain(moves: Moves, x: Tensor, gain: Tensor, guide: tuple[Tensor, Tensor] | None) -> Tensor:
    """What single moves gain (R, N, O): in a network's scores where ``guide`` says so, else in the true score."""
    if guide is None:
        return gain
    scores, by_score = guide
    in_scores = scores.gather(2, moves.states(x)) - scores.gather(2, x[..., None])
    return torch.where(by_score[:, None, None], in_scores, gain)


def _apply_single(moves: Moves, x: Tensor, worth: Tensor, change: Tensor, broken: Tensor) -> Tensor:
    """Make, in each row, every move that outranks all moves it shares a factor with; returns which rows moved."""
    top, offset = worth.max(2)  # shape: (R, N)
    strength = _distinct(top)
    chosen = (top > -torch.inf) & (strength >= moves.near(strength))
    target = moves.states(x).gather(2, offset[..., None]).squeeze(2)
    x.copy_(torch.where(chosen, target, x))
    broken += torch.where(chosen, change.gather(2, offset[..., None]).squeeze(2), 0.0).sum(1)
    return chosen.any(1)


def _apply_pair(moves: Moves, x: Tensor, worth: Tensor, change: Tensor, broken: Tensor) -> Tensor:
    """As `_apply_single`, for pair moves."""
    top, offset = worth.flatten(2).max(2)  # shape: (R, P)
    strength = _distinct(top)
    of_variable = moves.index.pair_to_variable.max(torch.cat([strength, strength], 1), -torch.inf)
    near = moves.near(of_variable)
    i, j = moves.pairs.unbind(1)
    chosen = (top > -torch.inf) & (strength >= torch.maximum(near[:, i], near[:, j]))
    shift = torch.zeros_like(x)
    for variable, move in ((i, offset // moves.offsets + 1), (j, offset % moves.offsets + 1)):
        shift.index_add_(1, variable, torch.where(chosen, move, 0))
    x.copy_((x + shift) % moves.batch.cardinalities)
    broken += torch.where(chosen, change.flatten(2).gather(2, offset[..., None]).squeeze(2), 0.0).sum(1)
    return chosen.any(1)


def _distinct(worth: Tensor) -> Tensor:
    """Break ties without changing the order otherwise, so that of two conflicting moves only one is strongest."""
    finite = worth.masked_fill(worth == -torch.inf, 0.0)
    unit = finite.abs().amax().clamp(min=1.0) * 2.0**-42
    return worth + unit * torch.arange(1, worth.shape[1] + 1, device=worth.device)


def _from_zero(moves: Moves, batch: ModelBatch, end: Tensor, max_steps: int, deadline: float | None) -> Tensor:
    """Try once more where nothing feasible was found: from all zeros, which exceed no upper bound."""
    infeasible = (~(batch.score(end) > -torch.inf).any(1)).nonzero().squeeze(1)
    zeros = torch.zeros(len(infeasible), batch.num_variables, dtype=torch.int64, device=batch.device)
    extra = end[:, 0].clone()
    extra[infeasible] = _search(moves, zeros, infeasible, None, max_steps, deadline)
    return torch.cat([end, extra[:, None]], 1)


def _finite(scores: Tensor) -> Tensor:
    return scores.double().nan_to_num(nan=-1e30, neginf=-1e30, posinf=1e30)
