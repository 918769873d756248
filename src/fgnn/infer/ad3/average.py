"""The mean of the iterates of `ad3`, and when to restart from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout
from fgnn.infer.ad3.steps import State, Terms, disagreement, factor_step, variable_step

CHECK = 25  # iterations between two decisions
# Start a new average if the disagreement has halved since the last restart, or has shrunk by a tenth and is growing
# again, or if the average covers about a third of the whole run.
HALVED, LESS, LONG = 0.5, 0.9, 0.3
_EVALUATION = 4.0  # iterations in the time of an evaluation


@dataclass(eq=False)
class Average:
    """The mean of z since the last restart. Iterates circle around a solution; their mean is closer to it."""

    z: Tensor  # shape: (E, B), summed
    cells: Tensor  # shape: (cells, B), summed
    count: Tensor  # shape: (B,)
    then: Tensor  # shape: (B,), the disagreement at the last restart
    before: Tensor  # shape: (B,), the disagreement at the last decision

    @classmethod
    def of(cls, state: State) -> Average:
        far = state.z.new_full(state.p.shape[1:], torch.inf)
        return cls(torch.zeros_like(state.z), torch.zeros_like(state.cells), torch.zeros_like(far), far, far.clone())

    def add(self, state: State) -> None:
        self.z += state.z
        self.cells += state.cells
        self.count += 1.0

    def restart(self, layout: Layout, terms: Terms, state: State, done: int) -> None:
        """Continue from the mean, in models where a restart is due and the mean has less disagreement."""
        now = disagreement(layout, state)
        mean = state.twin(self.z / self.count, self.cells / self.count)
        factor_step(layout, terms, mean)
        variable_step(layout, terms, mean)
        at_mean = disagreement(layout, mean)
        best = torch.minimum(now, at_mean)
        due = (best <= HALVED**2 * self.then) | ((best <= LESS**2 * self.then) & (best > self.before))
        due |= self.count >= LONG * done
        due &= self.count > CHECK
        jump = due & (at_mean < now)
        state.z = torch.where(jump, mean.z, state.z)
        state.cells = torch.where(jump, mean.cells, state.cells)
        state.taus = [torch.where(jump, y, x) for x, y in zip(state.taus, mean.taus, strict=True)]
        first = self.then == torch.inf
        self.then = torch.where(due | first, best, self.then)
        self.before = torch.where(due, torch.inf, best)
        self.z.mul_(~due)
        self.cells.mul_(~due)
        self.count = self.count * ~due


def advance(
    layout: Layout, terms: Terms, state: State, average: Average, done: int, steps: int, late: Callable[[float], bool]
) -> int:
    """``steps`` iterations and a restart, after ``done`` iterations; q is then that of the last z.

    Ends early, without a restart, if ``late`` says that there would be no time for an evaluation, which takes as long
    as a few iterations. Returns how many were done.
    """
    for step in range(steps):
        begin = time.monotonic()
        factor_step(layout, terms, state)
        variable_step(layout, terms, state)
        average.add(state)
        if late(_EVALUATION * (time.monotonic() - begin)):
            factor_step(layout, terms, state)
            return step + 1
    average.restart(layout, terms, state, done + steps)
    factor_step(layout, terms, state)
    return steps
