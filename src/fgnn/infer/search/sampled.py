"""The search for many models, or many copies of one, on a GPU: annealing by exact samples of subgraphs."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.local_search.moves import Moves
from fgnn.infer.local_search.refine import merge
from fgnn.infer.reporter import Reporter
from fgnn.infer.search.sampler import KERNEL, Sampler, Subgraph, resident_blocks
from fgnn.pgm import ModelBatch
from fgnn.runtime.nvrtc import Compile

_CELLS = 1 << 8  # joint states in a step of a subgraph that is sampled ...
_WIDE = 1 << 12  # ... and of one that is solved at the end of a run
_PLANS = 32  # subgraphs of each kind
_REUSE = {
    _CELLS: 16,
    _WIDE: 4,
}  # samples for each new plan, until there are enough: the GPU samples while the CPU plans
_LENGTH = 160  # samples of an annealing run at first
_SOLVES = 12  # solves at its end
_HOT, _COLD = 0.3, 0.03  # temperatures relative to the median loss of a move of one variable
_WARMTH = (1.0, 0.6)  # where runs begin in turn, relative to the highest temperature
_DOUBLE = 16  # runs until they become longer
_QUEUE = 8  # samples that the host is ahead of the GPU, at most
_MERGED = 4  # copies of a model whose results are merged into the best


@dataclass
class SampledSearch:
    """Annealing that redraws most variables at once, exactly given the rest, then solves subgraphs of larger width.

    On a grid, a subgraph of bounded width leaves about one variable in six fixed, other ones in every sample. Runs
    begin at a high temperature and, in turn, from the best assignment at a lower one. Many short runs beat a few long
    ones: in each component of variables that differ the best is kept.
    """

    batch: ModelBatch
    seed: int
    reporter: Reporter
    rounds: int | None = None
    build: Compile = KERNEL

    @torch.no_grad()
    def run(self, best: Tensor, deadline: float) -> Tensor:
        """Improve assignments (B, N) until the deadline, or for a number of samples."""
        batch = self.batch
        self.sampler = Sampler(batch, self.seed, self.build)
        self.moves = Moves(batch, max_pairs=0)
        self.plans: dict[int, list[Future[Subgraph]]] = {_CELLS: [], _WIDE: []}
        self.used = dict.fromkeys(self.plans, 0)
        self.best, self.deadline, self.done = best.clone(), deadline, 0
        self.planner = ThreadPoolExecutor(1)
        try:
            self._run()
        finally:
            self.planner.shutdown(cancel_futures=True)
        return self.best

    def _run(self) -> None:
        batch = self.batch
        copies = max(1, resident_blocks(batch.device) // len(batch))
        x = self.best.to(torch.uint8).repeat(copies, 1).contiguous()
        self._sample(x, _CELLS, torch.zeros(len(x), device=x.device))
        self._keep(x)
        hot = _HOT * self._typical_loss().repeat(copies)
        runs = 0
        while not self._over():
            x = self.best.to(torch.uint8).repeat(copies, 1).contiguous()
            warmth, length = _WARMTH[runs % len(_WARMTH)], _LENGTH << runs // _DOUBLE
            self._anneal(x, warmth * hot, _COLD / _HOT * hot, length)
            self._keep(x)
            runs += 1

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
        if x.is_cuda and self.done % _QUEUE == 0:
            torch.cuda.synchronize(x.device)
        self.sampler.sample(self._subgraph(cells), x, temperatures.contiguous(), self.done + 1)
        self.done += 1

    def _subgraph(self, cells: int) -> Subgraph:
        """The next subgraph; a thread plans one ahead."""
        plans, used = self.plans[cells], self.used[cells]
        count = min(_PLANS, 1 + used // _REUSE[cells])
        while len(plans) < min(_PLANS, count + 1):
            plans.append(self.planner.submit(self.sampler.plan, cells))
        self.used[cells] += 1
        return plans[used % count].result()

    def _keep(self, x: Tensor) -> None:
        """Keep what is better than the best, in each component of variables that differ."""
        states = x.long().view(-1, *self.best.shape).transpose(0, 1)  # shape: (B, copies, N)
        models = torch.arange(len(self.batch), device=x.device)
        for place in self.batch.score(states).topk(min(_MERGED, states.shape[1])).indices.T:
            self.best = merge(self.moves, self.best, states[models, place])
        if self.reporter.due():
            self.reporter.send("", float(self.batch.score(self.best).mean()), 0.0, self.best.clone())
