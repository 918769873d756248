"""The workers of the playground, started when needed and replaced when a request ends them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from fgnn.play.worker import MEMORY, SECONDS

_SOURCE = str(Path(__file__).resolve().parents[2])
_TOO_LONG = f"this request took longer than the {SECONDS} s that the playground allows"
_CANCELLED = "this request was cancelled"
_POLL = 0.1  # seconds between looks at whether a request was cancelled
_ENDED = f"this request ended its worker, which may use {MEMORY >> 20} MiB of memory; use 'fgnn solve'"


class Worker:
    """One process that runs a module such as `fgnn.play.worker`."""

    def __init__(self, module: str) -> None:
        path = os.pathsep.join(filter(None, (_SOURCE, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # no Ctrl-C for the worker; it ends when its input does
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, path: str, body: bytes, cancelled: Callable[[], bool]) -> tuple[int, bytes] | None:
        """The reply to a request; None if the process ended, which a cancelled request does to it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            head = json.dumps({"path": path, "length": len(body)}).encode()
            self._process.stdin.write(head + b"\n" + body)
            self._process.stdin.flush()
            self._wait(cancelled)
            reply = json.loads(self._process.stdout.readline() or b"null")
        except (BrokenPipeError, ValueError):
            reply = None
        return None if reply is None else (reply["code"], self._process.stdout.read(reply["length"]))

    def _wait(self, cancelled: Callable[[], bool]) -> None:
        """Wait until there is a reply, or end the process."""
        assert self._process.stdout is not None
        if os.name != "posix":  # elsewhere pipes cannot be waited for
            return
        while not select.select([self._process.stdout], [], [], _POLL)[0]:
            if cancelled():
                self._process.kill()
                return

    def close(self) -> int:
        """End the process; returns its status, or the negated signal that ended it."""
        try:
            self._process.communicate(timeout=0.5)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.communicate()
        return int(self._process.returncode)


class Workers:
    """At most ``most`` workers; further requests wait, so that many tabs cannot exhaust the machine."""

    def __init__(self, most: int, module: str = "fgnn.play.worker") -> None:
        self._module = module
        self._room = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._idle = [Worker(module)]  # it imports while the page loads
        self._closed = False

    def ask(self, path: str, body: bytes, cancelled: Callable[[], bool] = lambda: False) -> tuple[int, bytes | str]:
        """The status code, and the JSON of the reply or why there is none."""
        with self._room:
            if cancelled():
                return 400, _CANCELLED
            worker = self._take()
            reply = worker.ask(path, body, cancelled)
            if reply is None:
                ended_by = worker.close()
                if cancelled():
                    return 400, _CANCELLED
                alarm = -getattr(signal, "SIGALRM", 0)
                return 400, _TOO_LONG if ended_by == alarm != 0 else _ENDED
            with self._lock:
                if not self._closed:
                    self._idle.append(worker)
                    return reply
            worker.close()
            return reply

    def _take(self) -> Worker:
        """An idle worker that is still there, or a new one."""
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else Worker(self._module)
            if worker.alive:
                return worker
            worker.close()

    def close(self) -> None:
        """End the workers that wait for requests; busy ones end with theirs."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()
