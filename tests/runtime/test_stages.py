"""`Stages`: long work shows what it does and for how long; short work and pipes stay quiet."""

from __future__ import annotations

import io
import re
import threading
import time

import pytest

from fgnn.runtime import progress
from fgnn.runtime.progress import Stages


class Clock:
    """Time that passes by hand, and waits that return at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_it_says_what_it_does_how_far_it_is_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    stages = Stages("bench", total=4, stream=stream)
    stages("exact")
    clock.now += 15
    stages._update()
    stages("ad3\x1b[2J")
    clock.now += 15
    stages._update()
    stages._update()  # not twice within ten seconds
    stages.show("ad3, 5 of 9 chunks")
    clock.now += 90
    stages._update()
    stages.show("ad3", seconds_left=30.0)
    clock.now += 10
    stages._update()
    assert stream.getvalue().splitlines() == [
        "bench: 1 of 4: exact  0:15",
        "bench: 2 of 4: ad3\\x1b[2J  0:30  1:30 left",
        "bench: 2 of 4: ad3, 5 of 9 chunks  2:00  6:00 left",
        "bench: 2 of 4: ad3  2:10  0:20 left",
    ]


def test_short_work_shows_nothing() -> None:
    stream = io.StringIO()
    with Stages("bench", stream=stream) as stage:
        stage("exact")
    assert stream.getvalue() == ""


def test_a_long_call_shows_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(progress.Stages, "_refresh", quick_refresh)
    before = threading.active_count()
    with Stages("solve", stream=stream) as stage:
        stage("elimination")
        time.sleep(0.6)
    assert threading.active_count() == before
    assert re.search("solve: elimination", stream.getvalue())


def quick_refresh(self: Stages) -> None:
    while not self._stop.wait(0.05):
        with self._lock:
            self._update()


def test_an_error_ends_it() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="no"), Stages("x", stream=io.StringIO()):
        raise ValueError("no")
    assert threading.active_count() == before
