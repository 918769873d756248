"""The progress bar, on a terminal and elsewhere."""

from __future__ import annotations

import io

from fgnn.runtime.progress import ProgressBar, clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_elsewhere() -> None:
    stream = io.StringIO()
    bar = ProgressBar("run", stream=stream)
    bar.update("step 1", 1, 3, 62.0)
    bar.update("step 2", 2, 3)  # within the interval
    bar.log("note")
    bar.update("step 3", 3, 3)  # the last is always shown
    bar.close()
    assert stream.getvalue().splitlines() == ["run: step 1  1:02 left", "run: note", "run: step 3"]


def test_a_bar_on_a_terminal() -> None:
    stream = Terminal()
    bar = ProgressBar("run", stream=stream)
    bar.update("half", 1, 2)
    assert "run: half" in stream.getvalue()
    assert "━" * 10 in stream.getvalue()
    bar.log("note [1]")
    bar.close()
    assert stream.getvalue().endswith("run: note [1]\n")


def test_short_and_quiet_work_shows_nothing() -> None:
    stream = io.StringIO()
    for bar in (ProgressBar(wait=True, stream=stream), ProgressBar(quiet=True, stream=stream)):
        bar.update("done", 1, 1)
        bar.close()
    assert stream.getvalue() == ""


def test_clock() -> None:
    assert [clock(s) for s in (5, 65, 3665)] == ["0:05", "1:05", "1:01:05"]
