"""Where the seconds of a labelling go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

# In the order they come: file to store, waiting for pieces of tiles, the network, waiting for votes, the file again.
STAGES = ("reading", "tiles", "network", "votes", "writing")


class Clock:
    """Seconds by stage, as one waits for them: they sum to the whole, and what threads do meanwhile costs nothing.

    A stage within another counts for itself alone.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._within = 0.0

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start, before, self._within = time.perf_counter(), self._within, 0.0
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            self.seconds[stage] += taken - self._within
            self._within = before + taken
