"""Branch and bound on the relaxation of `ad3`, for many nodes of many models at once."""

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
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import Answer
from fgnn.pgm import ModelBatch

_WIDTH = 1024  # nodes relaxed at once, over all models
_PER_MODEL = 32  # nodes of one model branched on at once: more would miss improvements of the incumbent
_NODE_ITERATIONS = 50
_CUTS = (0.5, 0.65, 0.8, 0.95)  # constraints mostly forbid ones, so roundings with fewer ones are tried too
_ids = count()  # keeps nodes of equal bound in order


@dataclass(eq=False)
class _Node:
    """A relaxed node: a subset of a model's assignments, from which its children start."""

    forbidden: Tensor  # shape: (N, K), bool
    z: Tensor  # shape: (E,)
    cells: Tensor  # shape: (cells,)
    variable: int  # to branch on
    state: int
    bound: float
    taken: bool = False


@dataclass(eq=False)
class _Tree:
    """The search tree of one model; scores and bounds are standard and scaled."""

    proof: float  # a gap this large, relative to the score, is a proof
    open: list[tuple[float, int, _Node]] = field(default_factory=list)  # a heap by -bound
    recent: list[_Node] = field(default_factory=list)  # the same nodes, newest last
    score: float = -float("inf")
    states: Tensor | None = None  # shape: (N,), the incumbent
    nodes: int = 0

    def offer(self, score: float, states: Tensor) -> None:
        """Make an assignment the incumbent if it is better."""
        if score > self.score:
            self.score, self.states = score, states.clone()

    def push(self, node: _Node) -> None:
        heapq.heappush(self.open, (-node.bound, next(_ids), node))
        self.recent.append(node)

    def top(self) -> _Node | None:
        """The open node of highest bound; None if none can improve on the incumbent."""
        while self.open and self.open[0][2].taken:
            heapq.heappop(self.open)
        return self.open[0][2] if self.open and self.open[0][2].bound > self.cutoff else None

    def newest(self) -> _Node | None:
        """The node opened last: following these descends to an assignment."""
        while self.recent and (self.recent[-1].taken or self.recent[-1].bound <= self.cutoff):
            self.recent.pop()
        return self.recent[-1] if self.recent else None

    def next_nodes(self, count: int, newest_first: bool) -> list[_Node]:
        """Up to ``count`` nodes to branch on, alternating between the newest and the highest bound."""
        chosen: list[_Node] = []
        while len(chosen) < count:
            node = self.newest() if (len(chosen) % 2 == 0) == newest_first else self.top()
            if node is None:
                break
            node.taken = True
            chosen.append(node)
        return chosen

    @property
    def cutoff(self) -> float:
        """Nodes with a bound up to this cannot improve on the incumbent."""
        return self.score * (1 - self.proof) if self.states is not None else -float("inf")

    @property
    def bound(self) -> float:
        """Of all assignments: of those in open nodes, and of those given up."""
        node = self.top()
        return self.cutoff if node is None else max(self.cutoff, node.bound)


class _Search:
    """The search trees of all models of a batch."""

    def __init__(self, batch: ModelBatch, layout: Layout, dtype: torch.dtype, limits: Limits) -> None:
        self.batch, self.layout, self.dtype = batch, layout, dtype
        root = replace(limits, cuts=_CUTS)
        self.limits = replace(root, iterations=min(limits.iterations, _NODE_ITERATIONS))
        exact = build_numbers(batch, layout)
        self.scale = exact.scale
        self.trees = [_Tree(limits.proof) for _ in range(len(batch))]
        relaxed = relax(layout, exact, dtype, root)
        self.iterations = relaxed.iterations.clone()
        self.fallback = rows_to_states(layout, relaxed.x)
        self._offer(range(len(batch)), relaxed.score, self.fallback)
        self._dive(relaxed)
        every = torch.arange(len(batch), device=batch.device)
        self._add(every, relaxed, batch.unary == -torch.inf, torch.zeros_like(relaxed.bound))

    def active(self, max_nodes: int) -> list[int]:
        """The models with open nodes."""
        return [b for b, tree in enumerate(self.trees) if tree.nodes < max_nodes and tree.top() is not None]

    def expand(self, models: list[int], newest_first: bool) -> None:
        """Branch on nodes of these models and relax the children."""
        share = min(_PER_MODEL, max(1, _WIDTH // (2 * len(models))))
        owners: list[int] = []
        parents: list[_Node] = []
        for b in models:
            chosen = self.trees[b].next_nodes(share, newest_first)
            owners += [b] * len(chosen)
            parents += chosen
        which = torch.tensor(owners, device=self.batch.device).repeat(2)
        forbidden = _children(parents)
        nodes = self.batch.select(which)
        nodes = replace(nodes, unary=nodes.unary.masked_fill(forbidden, -torch.inf))
        exact = build_numbers(nodes, self.layout, self.scale[which])
        parent_bound = self._float64([node.bound for node in parents]).repeat(2)
        z, cells = (torch.stack([getattr(n, x) for n in parents], 1).repeat(1, 2) for x in ("z", "cells"))
        floor = self._cutoffs(owners).repeat(2)
        relaxed = relax(self.layout, exact, self.dtype, self.limits, warm=Warm(z, cells), floor=floor)
        self.iterations.index_add_(0, which, relaxed.iterations)
        self._add(which, relaxed, forbidden, parent_bound)

    def assignments(self) -> Tensor:
        """The incumbents, or the rounding of the root relaxation.  # shape: (B, N)"""
        if not self.trees:
            return self.fallback
        best = (f if t.states is None else t.states for t, f in zip(self.trees, self.fallback, strict=True))
        return torch.stack(list(best))

    def report(self, reporter: Reporter) -> None:
        if len(self.trees) == 1:
            tree, factor = self.trees[0], float(self.scale[0])
            reporter.send(f"{tree.nodes} nodes", tree.score * factor, tree.bound * factor, self.assignments())
        else:
            finished = sum(tree.top() is None for tree in self.trees)
            reporter.send(f"{finished} of {len(self.trees)} models", assignment=self.assignments())

    def answer(self, late: bool) -> Answer:
        ended = torch.tensor([t.top() is None for t in self.trees], dtype=torch.bool, device=self.batch.device)
        return Answer.of(
            self.assignments(),
            bound=self._float64([t.bound for t in self.trees]) * self.scale,
            converged=ended,
            iterations=self.iterations,
            timed_out=~ended & late,
            info={"nodes": torch.tensor([t.nodes for t in self.trees], device=self.batch.device)},
        )

    # ---- after a relaxation ---------------------------------------------------------------------------------------

    def _dive(self, relaxed: Relaxed) -> None:
        """Look for better assignments of the models that the root relaxation does not solve."""
        hard = torch.nonzero(relaxed.bound > self._cutoffs(range(len(self.trees)))).squeeze(1)
        if not len(hard):
            return
        part, scale = self.batch.select(hard), self.scale[hard]
        warm = relaxed.end.columns(hard)
        better = dive(part, self.layout, self.dtype, self.limits, relaxed.p[:, hard], warm, scale)
        self._offer(hard.tolist(), part.score(better) / scale, better)

    def _add(self, models: Tensor, relaxed: Relaxed, forbidden: Tensor, parent_bound: Tensor) -> None:
        """Offer the roundings, prune nodes by bound, fix states by the multipliers, and open the remaining nodes."""
        owners = models.tolist()
        for b in owners:
            self.trees[b].nodes += 1
        self._offer(owners, relaxed.score, rows_to_states(self.layout, relaxed.x))
        cutoff = self._cutoffs(owners)
        bounds = torch.minimum(relaxed.bound, parent_bound)
        left = torch.nonzero(bounds > cutoff).squeeze(1)
        if not len(left):
            return
        forbidden = forbidden[left]
        forbidden = forbidden | _excluded(self.layout, relaxed, left, cutoff[left], forbidden)
        leaf = forbidden.sum(2).eq(forbidden.shape[2] - 1).all(1)
        if leaf.any():  # every variable has one state left
            ends = (~forbidden[leaf]).to(torch.int8).argmax(2)
            owner = models[left[leaf]]
            self._offer(owner.tolist(), self.batch.select(owner).score(ends) / self.scale[owner], ends)
        left, forbidden = left[~leaf], forbidden[~leaf]
        if not len(left):
            return
        variable, state = (t.tolist() for t in _branching(self.layout, relaxed.p[:, left], forbidden))
        columns, node_bounds = left.tolist(), bounds[left].tolist()
        for k in torch.argsort(bounds[left]).tolist():  # the highest bound is pushed last, to be the newest
            j = columns[k]
            z, cells = relaxed.end.z[:, j].clone(), relaxed.end.cells[:, j].clone()
            self.trees[owners[j]].push(_Node(forbidden[k].clone(), z, cells, variable[k], state[k], node_bounds[k]))

    def _offer(self, owners: list[int] | range, scores: Tensor, states: Tensor) -> None:
        for b, score, x in zip(owners, scores.tolist(), states, strict=True):
            self.trees[b].offer(score, x)

    def _cutoffs(self, owners: list[int] | range) -> Tensor:
        return self._float64([self.trees[b].cutoff for b in owners])

    def _float64(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.batch.device)


def search(
    batch: ModelBatch, layout: Layout, dtype: torch.dtype, limits: Limits, max_nodes: int, reporter: Reporter
) -> Answer:
    """Explore the tree of every model until no open node can improve on its best assignment."""
    trees = _Search(batch, layout, dtype, limits)
    for turn in count():
        active = trees.active(max_nodes)
        if not active or time.monotonic() >= limits.deadline:
            break
        trees.expand(active[: _WIDTH // 2], newest_first=turn % 2 == 0)
        if reporter.due():
            trees.report(reporter)
    return trees.answer(late=time.monotonic() >= limits.deadline)


def unsolved(batch: ModelBatch) -> Answer:
    """For models that the time limit leaves no time for: the best states by unaries."""
    nodes = torch.zeros(len(batch), dtype=torch.int64, device=batch.device)
    return Answer.of(batch.unary.argmax(2), converged=False, timed_out=True, info={"nodes": nodes})


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


def _excluded(layout: Layout, relaxed: Relaxed, which: Tensor, cutoff: Tensor, forbidden: Tensor) -> Tensor:
    """States (W, N, K) in no better assignment: the loss at their variable alone takes the bound below the cutoff."""
    gap = (relaxed.value[which] - cutoff).clamp(min=0.0)  # shape: (W,)
    slack = relaxed.slack[:, which]
    out = torch.zeros_like(forbidden)
    gain = slack[: len(layout.binary)].T  # shape: (W, Vb), of state 1 over state 0
    undecided = ~forbidden[:, layout.binary, :2].any(2)
    out[:, layout.binary, 0] = undecided & (gain >= gap[:, None])
    out[:, layout.binary, 1] = undecided & (-gain >= gap[:, None])
    for k, members, rows in layout.many:
        block = fold(slack[rows] >= gap, -1, k)  # shape: (n_k, k, W)
        out[:, members, :k] = block.permute(2, 0, 1)
    return out


def _branching(layout: Layout, p: Tensor, forbidden: Tensor) -> tuple[Tensor, Tensor]:
    """The most fractional variable with several states (W,), and its most likely state (W,)."""
    marginals = marginals_of(layout, p, forbidden).masked_fill(forbidden, -1.0)
    top, state = marginals.max(2)
    undecided = (~forbidden).sum(2) > 1
    variable = top.masked_fill(~undecided, torch.inf).argmin(1)
    return variable, state.gather(1, variable[:, None]).squeeze(1)
