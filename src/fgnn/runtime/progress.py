"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Self, TextIO

from fgnn.names import printable

if TYPE_CHECKING:
    from rich.progress import Progress

Log = Callable[[str], None]  # takes one line of text

_WIDTH = 30  # characters of a bar


class ProgressBar:
    """One line on standard error, rewritten in place on a terminal; elsewhere a plain line every ten seconds.

    Args:
        name: Prefix of every line.
        quiet: Show nothing.
        wait: Skip the first interval, so that short work shows nothing.
        every: Seconds between plain lines.
    """

    def __init__(
        self,
        name: str = "",
        *,
        quiet: bool = False,
        wait: bool = False,
        every: float = 10.0,
        stream: TextIO | None = None,
    ) -> None:
        self._prefix, self._wait = f"{name}: " if name else "", wait
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet or self._stream is None  # a process may have no standard error
        self._terminal = not self._quiet and self._stream.isatty()
        self._interval = 0.2 if self._terminal else every
        self._last = time.monotonic() if wait else -float("inf")
        self._bar: Progress | None = None

    def update(
        self, text: str, done: float | None = None, total: float | None = None, seconds_left: float | None = None
    ) -> None:
        """Show the current state, at most once per interval; ``done`` and ``total`` draw the bar."""
        now = time.monotonic()
        last = done is not None and done == total and not self._wait
        if self._quiet or (now - self._last < self._interval and not last):
            return
        self._last = now
        left = f"  {clock(seconds_left)} left" if seconds_left is not None else ""
        line = printable(self._prefix + text + left)
        if not self._terminal:
            print(line, file=self._stream, flush=True)
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(_WIDTH), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=Console(file=self._stream), transient=True, auto_refresh=False)
            self._bar.add_task("", total=None)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=line, completed=done or 0, total=total, refresh=True)

    def log(self, text: str) -> None:
        """Print a line that stays, above the bar."""
        if not self._quiet:
            self.close()
            print(printable(self._prefix + text), file=self._stream, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Stages:
    """Long work that cannot count its steps: what it is doing, for how long, and a guess of the time left.

    A thread rewrites the line of a `ProgressBar`, so that one long call shows that it goes on. Work of less than two
    seconds shows nothing, and elsewhere than on a terminal a line appears every ten seconds.

    Args:
        name: Prefix of every line.
        total: The number of stages, from which the time left is guessed.
        quiet: Show nothing.

    Example:
        >>> with Stages("bench", total=2) as stage:
        ...     stage("exact")
        ...     stage("max-product")
    """

    def __init__(
        self, name: str = "", total: int | None = None, *, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self._bar = ProgressBar(name, quiet=quiet, wait=True, stream=stream)
        self._total, self._begun, self._text = total, 0, ""
        self._left: float | None = None
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __call__(self, text: str) -> None:
        """Begin the next stage."""
        with self._lock:
            self._begun += 1
            self._text, self._left = text, None

    def show(self, text: str, seconds_left: float | None = None) -> None:
        """Say more about the stage at hand, and how long it may take if that is known."""
        with self._lock:
            self._text = text
            self._left = None if seconds_left is None else time.monotonic() + seconds_left

    def log(self, text: str) -> None:
        """Print a line that stays."""
        with self._lock:
            self._bar.log(text)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._bar.close()

    def _refresh(self) -> None:
        if self._stop.wait(2.0):
            return
        while not self._stop.wait(0.5):
            with self._lock:
                self._update()

    def _update(self) -> None:
        seconds = time.monotonic() - self._start
        done, left, count = self._begun - 1, None, ""
        if self._total is not None and done >= 0:
            count = f"{self._begun} of {self._total}: "
            left = seconds / done * (self._total - done) if done > 0 else None
        if self._left is not None:
            left = max(0.0, self._left - time.monotonic())
        text = f"{count}{self._text}  {clock(seconds)}".strip()
        if self._total is None and left is not None:  # no stages to count: a bar of the time
            self._bar.update(text, seconds, seconds + left, left)
        else:
            self._bar.update(text, max(done, 0), self._total, left)


def clock(seconds: float) -> str:
    """Format seconds as 1:02:03 or 2:03."""
    return str(timedelta(seconds=max(0, round(seconds)))).removeprefix("0:").removeprefix("0")


def log_line(text: str) -> None:
    """Print a line on standard error at once, if there is one."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr, flush=True)
