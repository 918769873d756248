"""One run of one method in a process of its own, which is killed if it does not end in time."""

from __future__ import annotations

import multiprocessing as mp
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from fgnn.bench.anytime.instances import Instance
from fgnn.bench.anytime.methods import METHODS, Recorder, warm_up

_START = 120.0  # seconds to read the model, import and warm up
_GRACE = 30.0  # seconds beyond twice the limit, for peers that build models or stop late


@dataclass(frozen=True)
class Run:
    """What is measured: a method on an instance within a time limit."""

    instance: str
    method: str
    limit: float
    threads: int
    seed: int

    @property
    def key(self) -> str:
        return f"{self.instance} | {self.method} | {self.limit:g} s"


def measure(run: Run, instance: Instance) -> dict[str, Any]:
    """Run it in a child process; return its record, with ``error`` where there is no answer."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fgnn.bench.anytime.worker"])
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, run, instance), daemon=False)
    child.start()
    theirs.close()
    try:
        started = ours.poll(_START) and ours.recv()
        if isinstance(started, dict):
            return started
        if not started:
            return {"error": f"did not start within {_START:g} s"}
        if not ours.poll(2 * run.limit + _GRACE):
            return {"error": f"did not stop {run.limit + _GRACE:g} s after its limit and was killed"}
        record: dict[str, Any] = ours.recv()
        return record
    except EOFError:
        child.join(5)
        return {"error": f"the process died (status {child.exitcode})"}
    finally:
        with suppress(ValueError):
            child.kill()
        child.join()


def _child(channel: Connection, run: Run, instance: Instance) -> None:
    try:
        recorder = Recorder(instance.make())
        warm_up(run.method)
        channel.send(True)
        channel.send(_record(run, recorder))
    except Exception as error:  # the parent records it
        lines = str(error).splitlines() or [type(error).__name__]
        channel.send({"error": lines[0][:200]})


def _record(run: Run, recorder: Recorder) -> dict[str, Any]:
    outcome = METHODS[run.method].run(recorder, run.limit, run.threads, run.seed)
    score = -np.inf if outcome.assignment is None else recorder.model.score(outcome.assignment)
    recorder.point(outcome.seconds, score, outcome.bound)
    return {
        "score": _finite(score),
        "bound": _finite(outcome.bound),
        "proved": outcome.proved,
        "seconds": round(outcome.seconds, 4),
        "note": outcome.note,
        "curve": recorder.curve(),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
