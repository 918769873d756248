"""A search in the background, while other methods plan, bound and prove."""

from __future__ import annotations

import time
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fgnn.infer.counted import counts_plainly
from fgnn.infer.search.ready import Kernels
from fgnn.infer.search.solver import DEFAULT_MOVES
from fgnn.pgm import ModelBatch
from fgnn.pgm.lowering import lower

if TYPE_CHECKING:
    from fgnn.infer.search.crew import Crew

DELAY = 0.05  # seconds in which a narrow model is solved without a search
POLL = 0.02
_REST, _MOST_REST = 0.02, 0.05  # share of the time, and seconds, to end the last slices in


class Beside:
    """Searches one model in standard form on all cores but one; `finish` adds the last.

    It begins once the compiled loops are loaded; `error` says why it cannot.

    Args:
        batch: The model, on the CPU.
        deadline: When to end, by `time.perf_counter`.
        seed: Of the workers.
        delay: Seconds to wait before it begins.
    """

    def __init__(self, batch: ModelBatch, deadline: float, seed: int, delay: float = DELAY) -> None:
        self.began = time.perf_counter()
        self.error = ""
        self._loaded = False
        self._batch, self._seed, self._delay = batch, seed, delay
        self._deadline = deadline - min(_MOST_REST, _REST * (deadline - self.began))
        self._threads = torch.get_num_threads()
        self._stop, self._lock = Event(), Lock()
        self._crew: Crew | None = None
        self._offers: list[Tensor] = []
        self._thread = Thread(target=self._begin, daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def ready(self, seconds: float) -> bool:
        """Wait for it to begin, at most this long; return whether its compiled loops are loaded."""
        self._thread.join(max(0.0, seconds))
        return self._loaded

    def offer(self, assignment: Tensor) -> None:
        """Let it use another method's assignment, (1, N)."""
        with self._lock:
            if self._crew is None:
                self._offers.append(assignment)
            else:
                self._crew.offer(self._lowered.complete(assignment)[0])

    def best(self) -> Tensor | None:
        """The best assignment so far, (1, N); None before it has begun."""
        return None if self._crew is None else self._crew.best()[None, : self._batch.num_variables]

    def finish(self) -> None:
        """Search on all cores for the rest of the time. `wait` for the end."""
        if self._crew is not None:
            self._crew.hire(self._threads - len(self._crew.workers))
            self._crew.begin(self._deadline)

    def wait(self) -> bool:
        """Wait a moment; return whether it has ended."""
        if self._crew is not None:
            return self._crew.wait(POLL)
        self._thread.join(POLL)
        return not self._thread.is_alive() and self._crew is None

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        with self._lock:
            if self._crew is not None:
                self._crew.stop()
                self._crew.check()

    def _begin(self) -> None:
        if self._stop.wait(self._delay):
            return
        try:
            if not Kernels.load().wait(self._deadline - time.perf_counter()):
                self.error = "its loops were not compiled in time"
                return
            self._loaded = True
            from fgnn.infer.search.crew import Crew

            self._lowered = lower(self._batch, local=True, keep=counts_plainly)
            start = self._lowered.complete(self._batch.unary.argmax(2))[0]
            crew = Crew(self._lowered.batch, 0, start, self._seed, DEFAULT_MOVES)
            crew.hire(max(1, self._threads - 1))
            with self._lock:
                for assignment in self._offers:
                    crew.offer(self._lowered.complete(assignment)[0])
                self._crew = crew
                if not self._stop.is_set():
                    crew.begin(self._deadline)
        except (ImportError, ValueError, RuntimeError, MemoryError) as error:
            self.error = str(error)
