"""Progress reports of a solver: often at first, then twice a second."""

from __future__ import annotations

import math
import time

from torch import Tensor

from fgnn.infer.solution import OnProgress, Progress

# Seconds between reports: a tenth of the time so far, within these limits. The first answers improve fastest.
_LEAST, _MOST = 0.02, 0.5


class Reporter:
    """Calls ``progress`` with reports of a method."""

    def __init__(self, method: str, progress: OnProgress | None) -> None:
        self.method, self.progress = method, progress
        self.started = self.last = time.perf_counter()

    def due(self) -> bool:
        """Whether to send a report now; the next is then due a little later."""
        now = time.perf_counter()
        if self.progress is None or now - self.last <= min(_MOST, max(_LEAST, 0.1 * (now - self.started))):
            return False
        self.last = now
        return True

    def send(
        self, note: str, score: float = -math.inf, bound: float = math.inf, assignment: Tensor | None = None
    ) -> None:
        if self.progress is not None:
            self.progress(Progress(self.method, self.last - self.started, score, bound, note, assignment))
