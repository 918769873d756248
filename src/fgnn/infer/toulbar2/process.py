"""A child process that runs toulbar2 and can be stopped: messages to it, its output, and its end."""

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
_GRACE = 0.5  # seconds between the request to stop and the kill, at most
_PARSE_BYTES = 1 << 16  # output is parsed when twice this much is unread
_KEEP_BYTES = 1 << 24  # and discarded beyond this
_IMPROVEMENT = re.compile(rb"New solution: (\d+)[^\n]*\n([ \d]+)\n|Optimality gap: \[(\d+), ")

# Idle children, kept for the next call: starting one takes longer than solving a small model.
_idle: list[Toulbar2Process] = []
_owner = os.getpid()


class Toulbar2Process:
    """A child that takes a structure and then one task at a time; `poll` returns the state of the task.

    While a task runs, ``solutions`` holds the latest assignments printed, newest last, and ``lower`` the lower bound.
    """

    def __init__(self) -> None:
        # In a new session, so that Ctrl-C reaches only the parent, which then stops the child.
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
        os.set_blocking(self._child.stdin.fileno(), False)  # a child that does not read must not block us
        self.channels = (self._child.stdout.fileno(), self._child.stderr.fileno())
        for channel in self.channels:
            os.set_blocking(channel, False)
        self.structure: object = None
        self._answer = b""
        self._output = b""  # of toulbar2 itself
        self._deadline, self._grace = np.inf, _GRACE
        self._stalled = False
        self.solutions: list[NDArray[np.int64]] = []
        self.lower = 0

    def send_structure(self, key: object, header: dict[str, Any], ints: NDArray[np.int64], seconds: float) -> None:
        """Send the structure ``key`` of the next tasks unless the child has it; it has ``seconds`` to read it."""
        if self.structure is not key:
            self._deadline = time.monotonic() + seconds
            self._send(header | {"do": "structure"}, ints, np.zeros(0))
            self.structure = key

    def start(
        self, task: int, header: dict[str, Any], ints: NDArray[np.int64], floats: NDArray[np.float64], seconds: float
    ) -> None:
        """Start a task; after ``seconds`` it is asked to stop, and killed a little later."""
        self._drain()
        self._answer, self._output = b"", b""
        self.solutions, self.lower = [], 0
        self._deadline, self._grace = time.monotonic() + seconds, grace(seconds)
        timer = int(min(seconds, 1e9)) + 2  # a safeguard: toulbar2 counts CPU seconds
        self._send(header | {"do": "solve", "id": task, "seconds": timer}, ints, floats)

    def poll(self) -> dict[str, Any] | None:
        """Return the answer, ``{"error": ...}`` if there will be none, or None while the task runs."""
        self._drain()
        line, complete, _ = self._answer.partition(b"\n")
        if complete:
            answer: dict[str, Any] = json.loads(line)
            if answer.get("limited") or "error" in answer:
                self.read_output()
                self.kill()  # the state after an interrupted search is not reliable
            return answer
        if self._child.poll() is not None and not self._stalled:
            self._drain()
            self.read_output()
            return {"error": f"toulbar2 died (status {self._child.returncode}){self._last_line()}"}
        late = time.monotonic() - self._deadline
        if late > self._grace or self._stalled:
            self.kill()
            self._drain()
            self.read_output()
            return {"error": "toulbar2 did not stop when asked and was killed", "killed": True}
        if late > 0:
            self._child.send_signal(signal.SIGVTALRM)
        return None

    def wait_hint(self) -> float:
        """Seconds until `poll` must be called even without output."""
        late = time.monotonic() - self._deadline
        return 0.05 if late > 0 else min(-late, 1.0)

    def read_output(self) -> None:
        """Parse solutions and bounds from the output of toulbar2."""
        end = 0
        for match in _IMPROVEMENT.finditer(self._output):
            end = match.end()
            if match[3] is not None:
                self.lower = max(self.lower, int(match[3]))
            else:
                self.solutions.append(np.array(match[2].split(), dtype=np.int64))
                del self.solutions[:-8]  # a few, in case the newest is incomplete
        self._output = self._output[end:][-_KEEP_BYTES:]

    def kill(self) -> None:
        """Kill the child."""
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
                left = self._deadline + self._grace - time.monotonic()
                if left <= 0:
                    self._stalled = True
                    self.kill()
                    return
                select.select([], [self._child.stdin], [], min(left, 1.0))
        except BrokenPipeError:
            pass  # `poll` reports that the child died

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
                    self._output += data
                    if len(self._output) > 2 * _PARSE_BYTES:
                        self.read_output()

    def _last_line(self) -> str:
        lines = self._output.decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def grace(seconds: float) -> float:
    """How long to wait for a child that was asked to stop after this many seconds."""
    return min(_GRACE, 0.05 * seconds)


def take() -> Toulbar2Process:
    """Return an idle child, or start one."""
    if _owner == os.getpid():  # a forked process must not write to its parent's children
        while _idle:
            process = _idle.pop()
            if process.alive:
                return process
            process.close()
    return Toulbar2Process()


def give_back(process: Toulbar2Process) -> None:
    """Keep a child for the next call, or close it if it is dead or enough are idle."""
    if _owner == os.getpid() and process.alive and len(_idle) < 8:
        _idle.append(process)
    else:
        process.close()


@atexit.register
def _close_idle() -> None:
    if _owner == os.getpid():
        while _idle:
            _idle.pop().close()
