"""Signals that stop a run with a checkpoint instead of at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Record SIGINT and SIGTERM instead of raising; a second one acts as usual.

    Yields a function that returns the first, or 0.
    """
    received: list[int] = []
    handlers: dict[int, Any] = {}

    def record(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, handlers[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            handlers[number] = signal.signal(number, record)
        except ValueError:  # not the main thread, which alone may handle signals
            break
    try:
        yield lambda: received[0] if received else 0
    finally:
        for replaced, handler in handlers.items():
            signal.signal(replaced, handler)
