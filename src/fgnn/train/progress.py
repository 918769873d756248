"""Telling a person how a run goes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from tqdm import tqdm


class TrainingProgress:
    """Shows step, loss, agreement, instances per second and time left.

    Args:
        quiet: Show nothing (ranks other than the first).
        every: Seconds between plain lines where there is no terminal.
    """

    def __init__(self, name: str, *, quiet: bool = False, every: float = 10.0, stream: TextIO | None = None) -> None:
        self._name, self._quiet, self._every = name, quiet, every
        self._stream = stream or sys.stderr
        self._bar: Any = None
        self._last = -float("inf")

    def update(self, line: dict[str, Any], total: int | None, seconds_left: float | None) -> None:
        """Show one line of metrics."""
        if self._quiet:
            return
        told = f"loss {line['loss']:.4f}  agreement {100 * line['agreement']:.2f} %  {line['per_second']:,.0f}/s"
        if self._stream.isatty():
            if self._bar is None:
                self._bar = tqdm(total=total, initial=0, desc=self._name, file=self._stream, unit="step", leave=True)
            self._bar.total = total
            self._bar.n = line["step"]
            self._bar.set_postfix_str(told)
            return
        now = time.monotonic()
        if now - self._last >= self._every or line["step"] == total:
            self._last = now
            left = f"  {clock(seconds_left)} left" if seconds_left is not None else ""
            print(f"{self._name}: step {line['step']}/{total or '?'}  {told}{left}", file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """One plain line, above the bar where there is one."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.write(f"{self._name}: {text}", file=self._stream)
        else:
            print(f"{self._name}: {text}", file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
