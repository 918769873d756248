"""Distribute the models of a batch over child processes within a time limit."""

from __future__ import annotations

import select
import time

import numpy as np
import torch

from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import OnProgress
from fgnn.infer.toulbar2.costs import SEARCHES, CostNetwork, Task
from fgnn.infer.toulbar2.process import Toulbar2Process, give_back, grace, take

_LEAST_SECONDS = 0.01  # a shorter stage is not started


class Schedule:
    """Runs every task's stages, on up to ``jobs`` children at a time."""

    def __init__(
        self,
        tasks: list[Task],
        network: CostNetwork,
        time_limit: float | None,
        jobs: int,
        progress: OnProgress | None,
    ) -> None:
        self.tasks, self.network, self.jobs = tasks, network, jobs
        self.reporter = Reporter("toulbar2", progress)
        self.queue = [t for t in tasks if not t.finished][::-1]
        self.count, self.done = len(self.queue), 0
        self.end = time.monotonic() + (np.inf if time_limit is None else time_limit - grace(time_limit))
        self.busy: dict[Toulbar2Process, tuple[Task, str, float]] = {}  # task, search, when its time is over

    def run(self) -> bool:
        """Work through the tasks; return True if interrupted."""
        waiting = list(self.queue)
        try:
            while self.queue or self.busy:
                self._fill()
                if self.busy:
                    self._poll()
                    self._report()
        except KeyboardInterrupt:
            self._harvest()
            if not any(task.cost is not None for task in waiting):
                raise
            return True
        finally:
            for process in self.busy:
                process.close()
        return False

    def _fill(self) -> None:
        """Start tasks on free children; each task gets an equal share of the time."""
        while self.queue and len(self.busy) < self.jobs:
            task = self.queue.pop()
            share = (self.end - time.monotonic()) / max(1.0, np.ceil((len(self.queue) + 1) / self.jobs))
            self._start_stage(take(), task, min(self.end, time.monotonic() + share))

    def _poll(self) -> None:
        """Wait for the children and take their answers."""
        channels = [channel for process in self.busy for channel in process.channels]
        select.select(channels, [], [], max(0.0, min(process.wait_hint() for process in self.busy)))
        for process, (task, search, until) in list(self.busy.items()):
            answer = process.poll()
            if answer is None:
                continue
            self.network.conclude(process, task, search, answer)
            if task.finished:
                self._end(process)
            else:
                self._start_stage(process, task, until)

    def _start_stage(self, process: Toulbar2Process, task: Task, until: float) -> None:
        """Start the task's next stage, or end the task if no search is left or no time."""
        left = until - time.monotonic()
        searches = SEARCHES if self.network.search == "auto" else [self.network.search]
        usable = [search for search in searches if task.failed.get(search, 0) < 2]
        task.exhausted = not usable
        if left <= _LEAST_SECONDS or not usable:
            self._end(process)
            return
        search, seconds = next(stage for stage in task.stages if stage[0] in usable)
        if not process.alive:
            self.busy.pop(process, None)
            process.close()
            process = take()
        # The last stage also gets the little that would be left after it.
        self.network.begin(process, task, search, left if left < 1.5 * seconds else seconds)
        self.busy[process] = (task, search, until)

    def _end(self, process: Toulbar2Process) -> None:
        """Count a task as done and free its child."""
        self.busy.pop(process, None)
        give_back(process)
        self.done += 1

    def _harvest(self) -> None:
        """Take what the children have printed so far."""
        for process, (task, _, _) in self.busy.items():
            self.network.harvest(process, task)

    def _report(self) -> None:
        """Report progress at most twice a second."""
        if not self.busy or not self.reporter.due():
            return
        self._harvest()
        best = torch.from_numpy(np.stack([t.best for t in self.tasks]))
        score, bound, note = -np.inf, np.inf, f"{self.done} of {self.count} models"
        if len(self.tasks) == 1:
            ((task, note, _),) = self.busy.values()
            score, bound = task.score, task.bound
        self.reporter.send(note, score, bound, best)
