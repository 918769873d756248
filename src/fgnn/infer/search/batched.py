"""The search for many models at once, as tensor operations: for a GPU."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.exact.order import graph_of
from fgnn.infer.exact.run import run_plan
from fgnn.infer.exact.solver import TooLarge, exact_plan
from fgnn.infer.local_search.decode import search as descend
from fgnn.infer.local_search.moves import Moves
from fgnn.infer.local_search.refine import merge
from fgnn.infer.reporter import Reporter
from fgnn.infer.search.restriction import Restriction
from fgnn.pgm import ModelBatch

_STATES = 1 << 14  # joint states in a step of a subgraph's elimination
_BALLS = 24  # subgraphs planned before each is used again
_SWEEPS = 200  # of an annealing run at first
_FEW = 0.25  # share of models that must gain in a round over all subgraphs for another one
_COLD = 0.05  # the last temperature, relative to the first


@dataclass
class BatchedSearch:
    """Annealing by colour classes, then exact solves of induced subgraphs given the rest, for all models at once.

    All models free the same subgraph, so that one plan serves them. Variables of one colour share no factor; their new
    states are drawn in one step.
    """

    batch: ModelBatch
    seed: int
    reporter: Reporter
    rounds: int | None = None

    @torch.no_grad()
    def run(self, best: Tensor, deadline: float) -> Tensor:
        """Improve assignments (B, N) until the deadline, or for a number of rounds."""
        self.generator = torch.Generator(self.batch.device).manual_seed(self.seed)
        self.host = torch.Generator().manual_seed(self.seed)
        self.moves = Moves(self.batch, max_pairs=0)
        self.best, self.score = best.clone(), self.batch.score(best)
        self.deadline = deadline
        self.size = 64.0
        plans: list[Restriction] = []
        done = 0
        x = self._anneal(self.best, 1.0, _SWEEPS)
        before = self.batch.score(x)
        while not self._over(done):
            if len(plans) < _BALLS:
                plans.append(self._subgraph())
            x = self._solve(plans[done % _BALLS], x)
            done += 1
            self._keep(x)
            if done % _BALLS == 0:
                after = self.batch.score(x)
                few = (after > before + self.moves.least_gain).double().mean() < _FEW
                before = after
                if few:  # a local optimum of nearly all models: go on from a warm copy, with other subgraphs
                    plans = []
                    x = self._anneal(self.best, 0.3, _SWEEPS)
                    before = self.batch.score(x)
        return self.best

    def _over(self, done: int) -> bool:
        return time.perf_counter() >= self.deadline or (self.rounds is not None and done >= self.rounds)

    def _keep(self, x: Tensor) -> None:
        """Keep what is better than the best in each component of differing variables."""
        self.best = merge(self.moves, self.best, x)
        self.score = self.batch.score(self.best)
        if self.reporter.due():
            self.reporter.send("", float(self.score.mean()), 0.0, self.best.clone())

    def _anneal(self, x: Tensor, warmth: float, sweeps: int) -> Tensor:
        """One annealing run from ``warmth`` times the highest temperature."""
        owner = torch.arange(len(x), device=x.device)
        x = descend(self.moves, x.clone(), owner, max_steps=50, deadline=self.deadline)
        gain, change = self.moves.single(x, owner)
        gap = -gain.amax(2)
        hot = gap.masked_fill(~gap.isfinite() | (gap <= 0), torch.nan).nanmedian(1).values.nan_to_num(nan=1.0)
        penalty = 4 * hot
        for sweep in range(sweeps):
            if time.perf_counter() >= self.deadline:
                break
            temperature = warmth * hot * _COLD ** (sweep / max(1, sweeps - 1))  # shape: (B,)
            for colour in self._colours():
                gain, change = self.moves.single(x, owner)
                value = (gain - penalty[:, None, None] * change) / temperature[:, None, None]
                value = torch.cat([torch.zeros_like(value[..., :1]), value], 2)
                noise = torch.empty_like(value).exponential_(generator=self.generator).log()
                offset = (value - noise).argmax(2)  # Gumbel noise: a sample of the softmax
                state = (x + offset) % self.batch.cardinalities
                x = torch.where(colour, state, x)
        x = descend(self.moves, x, owner, max_steps=200, deadline=self.deadline)
        self._keep(x)
        return x

    def _colours(self) -> Tensor:
        """Classes of variables that share no factor.  # shape: (colours, N), bool"""
        colours: Tensor = self.batch.structure.derived("search colours", lambda: _colour_classes(self.batch))
        return colours

    def _subgraph(self) -> Restriction:
        """Variables around a random one, few enough to be eliminated; as many as that allows."""
        neighbours: list[list[int]] = self.batch.structure.derived("search lists", lambda: _neighbours(self.batch))
        while True:
            start = int(torch.randint(self.batch.num_variables, (1,), generator=self.host))
            ball = _ball(neighbours, start, int(self.size), self.host)
            try:
                plan = Restriction.of(self.batch, torch.tensor(ball, device=self.batch.device))
                exact_plan(plan.apply(self.batch, self.best), max_states=_STATES, tries=1)
            except TooLarge:
                self.size = max(1.0, 0.9 * self.size)
                continue
            self.size = min(1.05 * self.size + 1, self.batch.num_variables)
            return plan

    def _solve(self, plan: Restriction, x: Tensor) -> Tensor:
        """Set the free variables to their best joint states given the rest; models that would lose keep theirs."""
        part = plan.apply(self.batch, x)
        steps = exact_plan(part, max_states=_STATES, tries=1)
        if steps.steps is None:
            return x
        states, _ = run_plan(steps, part, torch.float64)
        y = x.clone()
        y[:, plan.variables] = states
        better = self.batch.score(y) >= self.batch.score(x)
        return torch.where(better[:, None], y, x)


def _neighbours(batch: ModelBatch) -> list[list[int]]:
    """Who shares a factor with whom."""
    scopes = (scope for factors in batch.factors for scope in factors.scopes.tolist())
    return [sorted(others) for others in graph_of(batch.num_variables, scopes)]


def _colour_classes(batch: ModelBatch) -> Tensor:
    neighbours = _neighbours(batch)
    colour = [-1] * len(neighbours)
    for i, others in enumerate(neighbours):
        taken = {colour[j] for j in others}
        colour[i] = next(c for c in range(len(others) + 1) if c not in taken)
    of = torch.tensor(colour, device=batch.device)
    return of == torch.arange(max(colour, default=-1) + 1, device=batch.device)[:, None]


def _ball(neighbours: list[list[int]], start: int, size: int, generator: torch.Generator) -> list[int]:
    """About ``size`` variables in breadth-first order."""
    ball, seen, head = [start], {start}, 0
    while head < len(ball) < size:
        others = neighbours[ball[head]]
        head += 1
        for at in torch.randperm(len(others), generator=generator).tolist():
            if others[at] not in seen and len(ball) < size:
                seen.add(others[at])
                ball.append(others[at])
    return sorted(ball)
