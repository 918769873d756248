"""From a network's ranking to a good feasible assignment: repair, then local search on the true score."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.infer.local_search.moves import Moves
from fgnn.infer.tolerances import GAIN
from fgnn.pgm import ModelBatch

_ENTRIES = 1 << 24  # rows are worked on in slices of about this many entries


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
    """Assignments (B, N) that are locally best: no single flip, and no pair of flips in one factor, improves them.

    Every starting point is first repaired: while it breaks budgets or meets ``-inf`` entries, the flips that mend most
    for the least loss are made. Then flips and pairs of flips that raise the true score are made until none is
    left. Flips that share no factor are made in one step. The best end point is returned, never worse than the
    best starting point, and feasible whenever any point on the way was.

    Args:
        batch: The models.
        scores: A network's scores or log-marginals, (B, N, K): its argmax is a starting point, repaired once by the
            loss in these scores and once by the loss in the true score.
        starts: More starting points, each (B, N).
        samples: How many more to draw from the scores, as log-probabilities.
        seed: Seeds the samples.
        pairs: Whether to try pairs of flips where no single flip helps.
        max_steps: Steps of repair and search together, a bound for safety.
        time_limit: Seconds after which the best point so far is returned.
    """
    deadline = None if time_limit is None else time.perf_counter() + time_limit
    moves = Moves(batch, max_pairs=(1 << 20) if pairs else 0)
    points, ranks = _starting_points(batch, scores, starts, samples, seed)
    best = torch.stack(points, 1)  # shape: (B, S, N)
    before = batch.score(best)
    finite = None if scores is None else _finite(scores)
    count, many = len(batch), len(points)
    # the argmax stands twice, to be repaired in two ways: where it is feasible, one of the two is enough
    wanted = torch.ones_like(before, dtype=torch.bool)
    if scores is not None:
        wanted[:, len(starts)] = before[:, len(starts)] == -torch.inf
        drawn = best[:, len(starts) + 2 :]  # a draw that is the argmax again has nothing to add
        wanted[:, len(starts) + 2 :] = (drawn != best[:, len(starts), None]).any(2)
    work = wanted.flatten().nonzero().squeeze(1)
    end = best.flatten(0, 1).clone()
    step = max(1, _ENTRIES // moves.row_size)
    for rows in torch.split(work, step):
        owner = rows // many
        guide = None
        if finite is not None:
            guide = finite[owner], torch.tensor(ranks, device=batch.device)[rows % many]
        end[rows] = _search(moves, end[rows], owner, guide, max_steps, deadline)
    end = end.reshape(count, many, -1)
    if many and not bool((batch.score(end) > -torch.inf).any(1).all()):
        end = _from_zero(moves, batch, end, max_steps, deadline)
    best = torch.cat([best, end], 1)
    after = torch.cat([before, batch.score(end)], 1)
    return best[torch.arange(count, device=batch.device), after.argmax(1)]


def _starting_points(
    batch: ModelBatch, scores: Tensor | None, starts: Sequence[Tensor], samples: int, seed: int
) -> tuple[list[Tensor], list[bool]]:
    """The points, and for each whether its repair follows the network's ranking instead of the true score."""
    wanted = (len(batch), batch.num_variables)
    points = [s.to(batch.device, torch.int64) for s in starts]
    for s in points:
        if tuple(s.shape) != wanted:
            raise ValueError(f"Expected starting points of shape {wanted} (got {tuple(s.shape)})")
    ranks = [False] * len(points)
    if scores is None:
        if not points:
            points, ranks = [batch.unary.argmax(2)], [False]
        return points, ranks
    if scores.shape != batch.unary.shape:
        raise ValueError(f"Expected scores of shape {tuple(batch.unary.shape)} (got {tuple(scores.shape)})")
    allowed = _finite(scores).masked_fill(batch.unary == -torch.inf, -torch.inf)
    points += [allowed.argmax(2)] * 2
    ranks += [True, False]
    generator = torch.Generator(batch.device).manual_seed(seed)
    for _ in range(samples):
        noise = torch.empty_like(allowed).exponential_(generator=generator)
        points.append((allowed - noise.log()).argmax(2))  # Gumbel noise: a draw from the softmax
        ranks.append(False)
    return points, ranks


def search(moves: Moves, x: Tensor, owner: Tensor, *, max_steps: int = 10_000, deadline: float | None = None) -> Tensor:
    """Repair and improve rows x (R, N) of the models ``owner`` (R,), in slices that bound memory."""
    step = max(1, _ENTRIES // moves.row_size)
    parts = zip(torch.split(x, step), torch.split(owner, step), strict=True)
    return torch.cat([_search(moves, a, b, None, max_steps, deadline) for a, b in parts])


def _search(
    moves: Moves,
    x: Tensor,
    owner: Tensor,
    guide: tuple[Tensor, Tensor] | None,
    max_steps: int,
    deadline: float | None,
) -> Tensor:
    """Repair and improve rows x (R, N) until no move helps; rows that are done leave the work."""
    x, done = x.clone(), x.clone()
    rows = torch.arange(len(x), device=x.device)
    broken = moves.broken(x, owner)
    for _ in range(max_steps):
        if not len(rows) or (deadline is not None and time.perf_counter() > deadline):
            break
        gain, change = moves.single(x, owner)
        worth = _worth(gain, change, broken, _rank_gain(moves, x, guide))
        moved = _apply_single(moves, x, worth, change, broken)
        stuck = ~moved
        if len(moves.pairs) and bool(stuck.any()):
            which = stuck.nonzero().squeeze(1)
            part, owners = x[which], owner[which]
            gains, changes = moves.pair(part, owners, gain[which], change[which])
            worths = _worth(gains, changes, broken[which], None)
            mended = broken[which]
            moved[which] = _apply_pair(moves, part, worths, changes, mended)
            x[which], broken[which] = part, mended
        if not bool(moved.all()):
            done[rows[~moved]] = x[~moved]
            x, owner, rows, broken = x[moved], owner[moved], rows[moved], broken[moved]
            if guide is not None:
                guide = guide[0][moved], guide[1][moved]
    done[rows] = x
    return done


def _worth(gain: Tensor, change: Tensor, broken: Tensor, rank_gain: tuple[Tensor, Tensor] | None) -> Tensor:
    """What each move is worth, ``-inf`` where it may not be made.

    A row that breaks something takes only moves that mend, by loss per unit mended; a feasible one only moves that
    break nothing and gain.
    """
    rest = (1,) * (gain.dim() - 1)
    ill = (broken > 0).view(-1, *rest)
    loss = gain
    if rank_gain is not None:
        value, by_rank = rank_gain
        loss = torch.where(by_rank.view(-1, *rest), value, gain)
    mend = loss / (-change).clamp(min=1)
    allowed = torch.where(ill, change < 0, (change <= 0) & (gain > GAIN)) & (gain > -torch.inf)
    return torch.where(ill, mend, gain).masked_fill_(~allowed, -torch.inf)


def _rank_gain(moves: Moves, x: Tensor, guide: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    if guide is None:
        return None
    scores, by_rank = guide
    return scores.gather(2, moves.states(x)) - scores.gather(2, x[..., None]), by_rank


def _apply_single(moves: Moves, x: Tensor, worth: Tensor, change: Tensor, broken: Tensor) -> Tensor:
    """Make, in each row, the moves that are worth most among all they could meet; says which rows moved."""
    top, offset = worth.max(2)  # shape: (R, N)
    strength = _distinct(top)
    chosen = (top > -torch.inf) & (strength >= moves.near(strength))
    target = moves.states(x).gather(2, offset[..., None]).squeeze(2)
    x.copy_(torch.where(chosen, target, x))
    broken += torch.where(chosen, change.gather(2, offset[..., None]).squeeze(2), 0.0).sum(1)
    return chosen.any(1)


def _apply_pair(moves: Moves, x: Tensor, worth: Tensor, change: Tensor, broken: Tensor) -> Tensor:
    """The same for pairs of moves."""
    top, offset = worth.flatten(2).max(2)  # shape: (R, P)
    strength = _distinct(top)
    of_variable = moves.pair_to_variable.max(torch.cat([strength, strength], 1), -torch.inf)
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
    """The same order with ties parted, so that of two moves that meet only one is the strongest."""
    finite = worth.masked_fill(worth == -torch.inf, 0.0)
    unit = finite.abs().amax().clamp(min=1.0) * 2.0**-42
    return worth + unit * torch.arange(1, worth.shape[1] + 1, device=worth.device)


def _from_zero(moves: Moves, batch: ModelBatch, end: Tensor, max_steps: int, deadline: float | None) -> Tensor:
    """One more try where nothing feasible was found: from all zeros, which breaks no upper budget."""
    lost = (~(batch.score(end) > -torch.inf).any(1)).nonzero().squeeze(1)
    zero = torch.zeros(len(lost), batch.num_variables, dtype=torch.int64, device=batch.device)
    found = _search(moves, zero, lost, None, max_steps, deadline)
    whole = end[:, 0].clone()
    whole[lost] = found
    return torch.cat([end, whole[:, None]], 1)


def _finite(scores: Tensor) -> Tensor:
    return scores.double().nan_to_num(nan=-1e30, neginf=-1e30, posinf=1e30)
