"""Branch and bound over the relaxation: best bound and newest node by turns, many nodes of many models at a time."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field, replace
from itertools import count

import torch
from torch import Tensor

from fgnn.infer.ad3.dive import dive, marginals_of
from fgnn.infer.ad3.layout import Layout, fold
from fgnn.infer.ad3.numbers import build_numbers
from fgnn.infer.ad3.relax import Limits, Relaxed, Warm, relax
from fgnn.infer.ad3.rounding import rows_to_states
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.infer.tolerances import PROOF
from fgnn.infer.trivial_bound import factor_maxima
from fgnn.pgm import ModelBatch

_WIDTH = 1024  # nodes relaxed at once, over all models
_PER_MODEL = 32  # nodes of one model branched on at once: later ones of a round see no better incumbent
_NODE_ITERATIONS = 50
_CUTS = (0.5, 0.65, 0.8, 0.95)  # budgets mostly forbid ones, so fewer ones are tried too


_ids = count()  # nodes of equal bound stay in order


@dataclass(eq=False)
class _Node:
    """A part of a model's assignments, relaxed: what its children start from."""

    forbidden: Tensor  # shape: (N, K), bool
    z: Tensor  # shape: (E,)
    cells: Tensor  # shape: (cells,)
    variable: int  # to branch on
    state: int
    bound: float
    taken: bool = False


@dataclass(eq=False)
class _Tree:
    """The search in one model; scores and bounds are scaled.

    Args:
        unit: 1 in the model's own numbers, at most 1e-3: a proof is relative to the score, or to this if that is less.
            Where one entry is far larger than the rest, scores that differ are close to each other once scaled.
    """

    unit: float = 1e-3
    open: list[tuple[float, int, _Node]] = field(default_factory=list)  # a heap by -bound
    recent: list[_Node] = field(default_factory=list)  # the same nodes, newest last
    score: float = -float("inf")
    states: Tensor | None = None  # shape: (N,), the incumbent
    nodes: int = 0

    def offer(self, score: float, states: Tensor) -> None:
        if score > self.score:
            self.score, self.states = score, states.clone()

    def push(self, node: _Node) -> None:
        heapq.heappush(self.open, (-node.bound, next(_ids), node))
        self.recent.append(node)

    def top(self) -> _Node | None:
        """The open node of best bound, None where none could be better than the incumbent."""
        while self.open and self.open[0][2].taken:
            heapq.heappop(self.open)
        return self.open[0][2] if self.open and self.open[0][2].bound > self.enough else None

    def newest(self) -> _Node | None:
        """The open node opened last: following these leads down to an assignment."""
        while self.recent and (self.recent[-1].taken or self.recent[-1].bound <= self.enough):
            self.recent.pop()
        return self.recent[-1] if self.recent else None

    def next_nodes(self, count: int, dive: bool) -> list[_Node]:
        """Up to ``count`` nodes to branch on, by turns of best bound and newest."""
        chosen: list[_Node] = []
        while len(chosen) < count:
            node = self.newest() if (len(chosen) % 2 == 0) == dive else self.top()
            if node is None:
                break
            node.taken = True
            chosen.append(node)
        return chosen

    @property
    def enough(self) -> float:
        """A bound up to here is no better than the incumbent."""
        return self.score + PROOF * max(self.unit, abs(self.score)) if self.states is not None else -float("inf")

    @property
    def bound(self) -> float:
        node = self.top()
        return self.score if node is None else max(self.score, node.bound)


def search(
    batch: ModelBatch,
    layout: Layout,
    dtype: torch.dtype,
    limits: Limits,
    max_nodes: int,
    begin: float,
    progress: OnProgress | None,
) -> Answer:
    """Explore every model's tree until nothing open can be better than its best assignment."""
    root = replace(limits, cuts=_CUTS)
    inner = replace(root, iterations=min(limits.iterations, _NODE_ITERATIONS))
    exact = build_numbers(batch, layout)
    scale = exact.scale
    trees = [_Tree(unit) for unit in (1.0 / scale).clamp(max=1e-3).tolist()]
    found = relax(layout, exact, dtype, root)
    fallback = rows_to_states(layout, found.x)
    for tree, score, states in zip(trees, found.score.tolist(), fallback, strict=True):
        tree.offer(score, states)
    enough = torch.tensor([t.enough for t in trees], dtype=torch.float64, device=batch.device)
    hard = torch.nonzero(found.bound > enough).squeeze(1)
    if len(hard):
        own, at = batch.select(hard), found.end
        warm = Warm(at.z[:, hard], at.cells[:, hard])
        better = dive(own, layout, dtype, inner, found.p[:, hard], warm, scale[hard])
        for b, score, states in zip(hard.tolist(), (own.score(better) / scale[hard]).tolist(), better, strict=True):
            trees[b].offer(score, states)
    iterations = found.iterations.clone()

    def file(models: Tensor, found: Relaxed, forbidden: Tensor, above: Tensor) -> None:
        """Take better assignments, drop what cannot be better, fix what the multipliers settle, open the rest."""
        states = rows_to_states(layout, found.x)
        owners = models.tolist()
        for b, score, own in zip(owners, found.score.tolist(), states, strict=True):
            trees[b].nodes += 1
            trees[b].offer(score, own)
        enough = torch.tensor([trees[b].enough for b in owners], dtype=torch.float64, device=batch.device)
        bounds = torch.minimum(found.bound, above)
        left = torch.nonzero(bounds > enough).squeeze(1)
        if not len(left):
            return
        closed = forbidden[left] | _settled(layout, found, left, enough[left], forbidden[left])
        leaf = closed.sum(2).eq(closed.shape[2] - 1).all(1)
        if leaf.any():  # nothing left to choose: the score says all
            ends = (~closed[leaf]).to(torch.int8).argmax(2)
            owner = models[left[leaf]]
            scores = batch.select(owner).score(ends) / scale[owner]
            for b, score, end in zip(owner.tolist(), scores.tolist(), ends, strict=True):
                trees[b].offer(score, end)
        left, closed = left[~leaf], closed[~leaf]
        if not len(left):
            return
        variable, state = _branching(layout, found.p[:, left], closed)
        order = torch.argsort(bounds[left]).tolist()  # the best is pushed last, to be the newest
        places, variables, branches, limits_ = left.tolist(), variable.tolist(), state.tolist(), bounds[left].tolist()
        for k in order:
            j = places[k]
            z, cells = found.end.z[:, j].clone(), found.end.cells[:, j].clone()
            trees[owners[j]].push(_Node(closed[k].clone(), z, cells, variables[k], branches[k], limits_[k]))

    every = torch.arange(len(batch), device=batch.device)
    file(every, found, batch.unary == -torch.inf, torch.full_like(found.bound, torch.inf))
    told = begin
    for turn in count():
        active = [b for b, t in enumerate(trees) if t.nodes < max_nodes and t.top() is not None]
        if not active or time.monotonic() >= limits.deadline:
            break
        active = active[: _WIDTH // 2]
        share = min(_PER_MODEL, max(1, _WIDTH // (2 * len(active))))
        models: list[int] = []
        parents: list[_Node] = []
        for b in active:
            chosen = trees[b].next_nodes(share, dive=turn % 2 == 0)
            models += [b] * len(chosen)
            parents += chosen
        which = torch.tensor(models, device=batch.device).repeat(2)
        forbidden = _children(parents)
        nodes = batch.select(which)
        nodes = replace(nodes, unary=nodes.unary.masked_fill(forbidden, -torch.inf))
        exact = build_numbers(nodes, layout, scale[which])
        above = torch.tensor([n.bound for n in parents], dtype=torch.float64, device=batch.device).repeat(2)
        enough = torch.tensor([trees[b].enough for b in models], dtype=torch.float64, device=batch.device).repeat(2)
        z, cells = (torch.stack([getattr(n, x) for n in parents], 1).repeat(1, 2) for x in ("z", "cells"))
        warm = Warm(z, cells)
        found = relax(layout, exact, dtype, inner, warm=warm, floor=enough)
        iterations.index_add_(0, which, found.iterations)
        file(which, found, forbidden, above)
        if progress is not None and time.monotonic() - told > 0.5:
            told = time.monotonic()
            _tell(progress, trees, fallback, scale, told - begin)
    return _answer(batch, trees, scale, fallback, iterations, limits.deadline)


def unsolved(batch: ModelBatch) -> Answer:
    """For models the time limit left no time for: the best states by the unaries, each factor's own maximum."""
    late = torch.ones(len(batch), dtype=torch.bool, device=batch.device)
    nodes = torch.zeros(len(batch), dtype=torch.int64, device=batch.device)
    known = {"bound": factor_maxima(batch), "converged": ~late, "timed_out": late, "info": {"nodes": nodes}}
    return Answer.of(batch.unary.argmax(2), **known)


def _children(parents: list[_Node]) -> Tensor:
    """The forbidden states (2 W, N, K): first where the branching variables take their states, then where not."""
    masks = torch.stack([node.forbidden for node in parents]).repeat(2, 1, 1)
    each = torch.arange(len(parents), device=masks.device)
    variable = torch.tensor([n.variable for n in parents], device=masks.device)
    state = torch.tensor([n.state for n in parents], device=masks.device)
    masks[each, variable] = True
    masks[each, variable, state] = False
    masks[each + len(parents), variable, state] = True
    return masks


def _settled(layout: Layout, found: Relaxed, which: Tensor, enough: Tensor, forbidden: Tensor) -> Tensor:
    """States (W, N, K) that cannot be in a better assignment: their variable's loss alone takes the bound away."""
    room = (found.value[which] - enough).clamp(min=0.0)  # shape: (W,)
    slack = found.slack[:, which]
    out = torch.zeros_like(forbidden)
    gain = slack[: len(layout.binary)].T  # shape: (W, Vb), of state 1 over state 0
    undecided = ~forbidden[:, layout.binary, :2].any(2)
    out[:, layout.binary, 0] = undecided & (gain >= room[:, None])
    out[:, layout.binary, 1] = undecided & (-gain >= room[:, None])
    for k, members, rows in layout.many:
        block = fold(slack[slice(*rows)] >= room, -1, k)  # shape: (n_k, k, W)
        out[:, members, :k] = block.permute(2, 0, 1)
    return out


def _branching(layout: Layout, p: Tensor, closed: Tensor) -> tuple[Tensor, Tensor]:
    """The most fractional variable that has a choice (W,), and its most likely state (W,)."""
    marginals = marginals_of(layout, p, closed).masked_fill(closed, -1.0)
    top, state = marginals.max(2)
    choice = (~closed).sum(2) > 1
    variable = top.masked_fill(~choice, torch.inf).argmin(1)
    return variable, state.gather(1, variable[:, None]).squeeze(1)


def _assignments(trees: list[_Tree], fallback: Tensor) -> Tensor:
    return torch.stack([f if t.states is None else t.states for t, f in zip(trees, fallback, strict=True)])


def _tell(progress: OnProgress, trees: list[_Tree], fallback: Tensor, scale: Tensor, seconds: float) -> None:
    score, bound, note = -float("inf"), float("inf"), f"{sum(t.top() is None for t in trees)} of {len(trees)} models"
    if len(trees) == 1:
        factor = float(scale[0])
        score, bound, note = trees[0].score * factor, trees[0].bound * factor, f"{trees[0].nodes} nodes"
    progress(Progress("ad3", seconds, score, bound, note, _assignments(trees, fallback)))


def _answer(
    batch: ModelBatch, trees: list[_Tree], scale: Tensor, fallback: Tensor, iterations: Tensor, deadline: float
) -> Answer:
    device = batch.device
    ended = torch.tensor([t.top() is None for t in trees], dtype=torch.bool, device=device)
    bound = torch.tensor([t.bound for t in trees], dtype=torch.float64, device=device) * scale
    late = time.monotonic() >= deadline
    return Answer.of(
        _assignments(trees, fallback) if trees else fallback,
        bound=torch.minimum(bound, factor_maxima(batch)),
        proved=ended,
        converged=ended,
        iterations=iterations,
        timed_out=~ended & late,
        info={"nodes": torch.tensor([t.nodes for t in trees], device=device)},
    )
