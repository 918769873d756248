"""toulbar2 in a child process that can be stopped: what it writes, what it answers, and when it must die."""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

_WORKER = Path(__file__).with_name("worker.py")
_GRACE = 0.5  # seconds between the request to stop and the kill
_PATIENCE = 1 << 16  # unread chatter is parsed beyond this many bytes
_HOARD = 1 << 24  # and forgotten beyond this many
_NEWS = re.compile(rb"New solution: (\d+)[^\n]*\n([ \d]+)\n|Optimality gap: \[(\d+), ")

# Workers that finished cleanly wait here for the next call: starting one costs more than solving a small model.
_idle: list[Toulbar2Process] = []
_owner = os.getpid()


class Toulbar2Process:
    """One child. It takes a structure, then one task at a time; `poll` says what has become of the task.

    While a task runs, ``solutions`` are the assignments printed so far, newest last, and ``lower`` the lower bound.
    """

    def __init__(self) -> None:
        # A session of its own, so that Ctrl-C reaches the parent alone, which then stops the child.
        self._child = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        os.set_blocking(self._child.stdin.fileno(), False)  # a child that does not read must not hold us up
        self.channels = (self._child.stdout.fileno(), self._child.stderr.fileno())
        for channel in self.channels:
            os.set_blocking(channel, False)
        self.structure: object = None
        self._answer = b""
        self._chatter = b""
        self._deadline = np.inf
        self._stalled = False
        self.solutions: list[NDArray[np.int64]] = []
        self.lower = 0

    def send_structure(self, key: object, header: dict[str, Any], ints: NDArray[np.int64], seconds: float) -> None:
        """Make ``key`` the structure of the following tasks, unless it is; the child has ``seconds`` to read it."""
        if self.structure is not key:
            self._deadline = time.monotonic() + seconds
            self._send(header | {"do": "structure"}, ints, np.zeros(0))
            self.structure = key

    def start(
        self, task: int, header: dict[str, Any], ints: NDArray[np.int64], floats: NDArray[np.float64], seconds: float
    ) -> None:
        """Begin a task that is asked to stop after ``seconds`` and killed a little later."""
        self._drain()
        self._answer, self._chatter = b"", b""
        self.solutions, self.lower = [], 0
        self._deadline = time.monotonic() + seconds
        timer = int(min(seconds, 1e9)) + 2  # its own clock counts CPU seconds; ours is the one that is meant
        self._send(header | {"do": "solve", "id": task, "seconds": timer}, ints, floats)

    def poll(self) -> dict[str, Any] | None:
        """The answer, ``{"error": ...}`` if there will be none, or None: still at work."""
        self._drain()
        line, found, _ = self._answer.partition(b"\n")
        if found:
            answer: dict[str, Any] = json.loads(line)
            if answer.get("limited") or "error" in answer:
                self.read_chatter()
                self.kill()  # what an interrupted search leaves behind is not worth trusting
            return answer
        if self._child.poll() is not None and not self._stalled:
            self._drain()
            self.read_chatter()
            return {"error": f"toulbar2 died (status {self._child.returncode}){self._last_words()}", "died": True}
        late = time.monotonic() - self._deadline
        if late > _GRACE or self._stalled:
            self.kill()
            self._drain()
            self.read_chatter()
            return {"error": "toulbar2 did not stop when asked and was killed", "killed": True}
        if late > 0:
            self._child.send_signal(signal.SIGVTALRM)
        return None

    def wait_hint(self) -> float:
        """Seconds until `poll` must be called even if the child says nothing."""
        late = time.monotonic() - self._deadline
        return 0.05 if late > 0 else min(-late, 1.0)

    def read_chatter(self) -> None:
        """Take solutions and bounds from what toulbar2 printed."""
        end = 0
        for match in _NEWS.finditer(self._chatter):
            end = match.end()
            if match[3] is not None:
                self.lower = max(self.lower, int(match[3]))
            else:
                self.solutions.append(np.array(match[2].split(), dtype=np.int64))
                del self.solutions[:-8]  # a few, lest the newest be cut short
        self._chatter = self._chatter[end:][-_HOARD:]

    def kill(self) -> None:
        """End the child at once."""
        self._child.kill()
        self._child.wait()

    def close(self) -> None:
        """Kill the child and release its pipes."""
        self.kill()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def _send(self, header: dict[str, Any], ints: NDArray[np.int64], floats: NDArray[np.float64]) -> None:
        line = json.dumps(header | {"ints": ints.size, "floats": floats.size}).encode() + b"\n"
        assert self._child.stdin is not None
        view = memoryview(line + ints.tobytes() + floats.tobytes())
        try:
            while view:
                sent = cast("int | None", self._child.stdin.write(view))  # None: the pipe is full
                if sent is not None:
                    view = view[sent:]
                    continue
                left = self._deadline + _GRACE - time.monotonic()
                if left <= 0:
                    self._stalled = True
                    self.kill()
                    return
                select.select([], [self._child.stdin], [], min(left, 1.0))
        except BrokenPipeError:
            pass  # `poll` finds the child dead and says so

    def _drain(self) -> None:
        for k, channel in enumerate(self.channels):
            while True:
                try:
                    data = os.read(channel, 1 << 16)
                except BlockingIOError:
                    break
                if not data:
                    break
                if k == 0:
                    self._answer += data
                else:
                    self._chatter += data
                    if len(self._chatter) > 2 * _PATIENCE:
                        self.read_chatter()

    def _last_words(self) -> str:
        words = self._chatter.decode(errors="replace").strip().splitlines()
        return f": {words[-1]}" if words else ""


def take() -> Toulbar2Process:
    """An idle child, or a new one."""
    if _owner == os.getpid():  # a forked process must not write to its parent's children
        while _idle:
            process = _idle.pop()
            if process.alive:
                return process
            process.close()
    return Toulbar2Process()


def give_back(process: Toulbar2Process) -> None:
    """Keep a child that has nothing left to do, close one that is busy or dead."""
    if _owner == os.getpid() and process.alive and len(_idle) < 8:
        _idle.append(process)
    else:
        process.close()


@atexit.register
def _close_idle() -> None:
    if _owner == os.getpid():
        while _idle:
            _idle.pop().close()
