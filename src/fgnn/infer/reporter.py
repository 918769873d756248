"""Progress reports of a solver, at most twice a second."""

from __future__ import annotations

import math
import time

from torch import Tensor

from fgnn.infer.solution import OnProgress, Progress

_SECONDS = 0.5


class Reporter:
    """Calls ``progress`` with reports of a method; the first is due half a second after the start."""

    def __init__(self, method: str, progress: OnProgress | None) -> None:
        self.method, self.progress = method, progress
        self.started = self.last = time.perf_counter()

    def due(self) -> bool:
        """Whether to send a report now; the next is then due half a second later."""
        now = time.perf_counter()
        if self.progress is None or now - self.last <= _SECONDS:
            return False
        self.last = now
        return True

    def send(
        self, note: str, score: float = -math.inf, bound: float = math.inf, assignment: Tensor | None = None
    ) -> None:
        if self.progress is not None:
            self.progress(Progress(self.method, self.last - self.started, score, bound, note, assignment))
