"""The search for many models, or many copies of one, on a GPU: annealing by exact samples of subgraphs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.local_search.moves import Moves
from fgnn.infer.local_search.refine import merge
from fgnn.infer.reporter import Reporter
from fgnn.infer.search.sampler import Compile, Sampler, Subgraph, compile_on_gpu, resident_blocks
from fgnn.pgm import ModelBatch

_CELLS = 1 << 8  # joint states in a step of a subgraph that is sampled ...
_WIDE = 1 << 12  # ... and of one that is solved at the end of a run
_PLANS = 32  # subgraphs planned before each is used again
_REUSE = 4  # samples for each new plan, until there are enough: the GPU samples while the CPU plans
_LENGTH = 96  # samples of the first annealing run
_SOLVES = 12  # solves at its end
_HOT, _COLD = 0.35, 0.03  # temperatures relative to the median loss of a move of one variable
_WARM = 0.4  # where a run begins that starts from the best assignment, relative to the highest temperature
_MERGED = 4  # copies of a model whose results are merged into the best


@dataclass
class SampledSearch:
    """Annealing that redraws most variables at once, exactly given the rest, then solves subgraphs of larger width.

    On a grid, a subgraph of bounded width leaves about one variable in six fixed, other ones in every sample. Runs
    double in length; they begin at a high temperature and, in turn, from the best assignment at a lower one.
    """

    batch: ModelBatch
    seed: int
    reporter: Reporter
    rounds: int | None = None
    build: Compile = compile_on_gpu

    @torch.no_grad()
    def run(self, best: Tensor, deadline: float) -> Tensor:
        """Improve assignments (B, N) until the deadline, or for a number of samples."""
        batch = self.batch
        self.sampler = Sampler(batch, self.seed, self.build)
        self.moves = Moves(batch, max_pairs=0)
        self.plans: dict[int, list[Subgraph]] = {_CELLS: [], _WIDE: []}
        self.best, self.deadline, self.done = best.clone(), deadline, 0
        copies = max(1, resident_blocks(batch.device) // len(batch))
        x = best.to(torch.uint8).repeat(copies, 1).contiguous()
        self._sample(x, _CELLS, torch.zeros(len(x), device=x.device))
        self._keep(x)
        hot = _HOT * self._typical_loss().repeat(copies)
        length, runs = _LENGTH, 0
        while not self._over():
            warmth = 1.0 if runs % 2 == 0 else _WARM
            x = self.best.to(torch.uint8).repeat(copies, 1).contiguous()
            self._anneal(x, warmth * hot, _COLD / _HOT * hot, length)
            self._keep(x)
            runs += 1
            length *= 1 + (runs % 2 == 0)
        return self.best

    def _over(self) -> bool:
        return time.perf_counter() >= self.deadline or (self.rounds is not None and self.done >= self.rounds)

    def _typical_loss(self) -> Tensor:
        """The median of what variables of the best assignment lose by moving.  # shape: (B,)"""
        owner = torch.arange(len(self.batch), device=self.batch.device)
        loss = -self.moves.single(self.best, owner)[0].amax(2)
        typical = loss.masked_fill(~loss.isfinite() | (loss <= 0), torch.nan).nanmedian(1).values
        return typical.nan_to_num(nan=1.0).float()

    def _anneal(self, x: Tensor, hot: Tensor, cold: Tensor, length: int) -> None:
        """Sample at falling temperatures, then solve."""
        for at in range(length):
            self._sample(x, _CELLS, hot * (cold / hot) ** (at / max(1, length - 1)))
            if self._over():
                break
        for _ in range(_SOLVES):
            self._sample(x, _WIDE, torch.zeros_like(hot))
            if self._over():
                break

    def _sample(self, x: Tensor, cells: int, temperatures: Tensor) -> None:
        plans = self.plans[cells]
        if len(plans) < _PLANS and (not plans or self.done % _REUSE == 0):
            plans.append(self.sampler.plan(cells))
        if x.is_cuda and self.done % 2 == 0:
            torch.cuda.synchronize(x.device)  # no queue that would outlast the deadline
        self.sampler.sample(plans[self.done % len(plans)], x, temperatures.contiguous(), self.done + 1)
        self.done += 1

    def _keep(self, x: Tensor) -> None:
        """Keep what is better than the best, in each component of variables that differ."""
        states = x.long().view(-1, *self.best.shape)  # shape: (copies, B, N)
        scores = torch.stack([self.batch.score(copy) for copy in states])
        models = torch.arange(len(self.batch), device=x.device)
        for place in scores.topk(min(_MERGED, len(states)), dim=0).indices:
            self.best = merge(self.moves, self.best, states[place, models])
        if self.reporter.due():
            self.reporter.send("", float(self.batch.score(self.best).mean()), 0.0, self.best.clone())
