"""Load the compiled loops in the background: the first time in an installation they take a while to compile."""

from __future__ import annotations

import threading
from typing import ClassVar


class Kernels:
    """Whether the compiled loops can be called."""

    _one: ClassVar[Kernels | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None
        # A daemon: a process that ends does not wait for it. What is compiled by then has been stored.
        threading.Thread(target=self._prepare, daemon=True).start()

    @classmethod
    def load(cls) -> Kernels:
        """Begin to load them, once in a process."""
        with cls._lock:
            if cls._one is None or cls._one._error is not None:
                cls._one = cls()
            return cls._one

    def wait(self, seconds: float | None) -> bool:
        """Wait until they can be called, at most this long; return whether they can."""
        done = self._done.wait(None if seconds is None else max(0.0, seconds))
        if self._error is not None:
            raise self._error
        return done

    def _prepare(self) -> None:
        try:
            from fgnn.infer.search.engine import warm_up

            warm_up()
        except BaseException as error:
            self._error = error
        self._done.set()
