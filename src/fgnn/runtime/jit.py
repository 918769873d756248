"""Compile inner loops that do not vectorise to machine code, with numba."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, cast

from fgnn.errors import need

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function at its first call; threads run it side by side, and later processes load it from disk.

    A module that uses this is imported where it is needed, so that `import fgnn` works without numba.
    """
    return cast("Function", need("numba").njit(cache=True, nogil=True, error_model="numpy")(function))


class Background:
    """A call made once in a process, in the background: such as one that loads compiled loops.

    The first time in an installation they take a while to compile, which a time limit may not allow.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Begin the call, unless it has begun."""
        with self._lock:
            if self._thread is None or self._error is not None:
                self._error = None
                self._done.clear()
                # A daemon: a process that ends does not wait for it. What is compiled by then has been stored.
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Begin the call if need be, and wait for it this long; return whether it has ended."""
        self.begin()
        done = self._done.wait(None if seconds == float("inf") else max(0.0, seconds))
        if self._error is not None:
            raise self._error
        return done

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
        self._done.set()
