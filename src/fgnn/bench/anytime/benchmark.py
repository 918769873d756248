"""Run methods on instances within time limits, keep every run in the result file, and continue where it ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fgnn.bench.anytime.instances import instances
from fgnn.bench.anytime.methods import METHODS, missing
from fgnn.bench.anytime.summary import summarise
from fgnn.bench.anytime.worker import Run, measure
from fgnn.bench.common import RESULTS, describe, number, show, write_result
from fgnn.errors import InputError
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import ProgressBar

SECONDS = (1.0, 5.0, 20.0)
PROTOCOL = (
    "Every run has a process of its own and the machine to itself, with the same number of threads. Each method first "
    "solves a 3 x 3 grid, so imports are not counted; planning and conversion are, except for CP-SAT and HiGHS, whose "
    "clock starts when their own search does. Assignments are scored by the model. A method whose answer at a limit is "
    "what a longer run has found by then runs once, with the longest limit. The gap is the shortfall from the best "
    "score of any method or the best known one, relative to the largest score in size that any method had on the way; "
    "without an answer it is 100 %."
)


def run(
    only: Sequence[str] = (),
    methods: Sequence[str] = (),
    seconds: Sequence[float] = SECONDS,
    again: Sequence[str] = (),
    data: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Measure what the result file does not have yet, and write it after every run.

    Args:
        only: Patterns of instance names; all by default.
        methods: Patterns of method names; all by default.
        seconds: The time limits.
        again: Patterns of methods to measure again.
        data: The folder of benchmark data; see `data_folder`.
        device: Only the CPU: the peers have no other.
        threads: Threads of each method; all cores by default.
        seed: The seed of the methods; instances have seeds of their own.
        out: Where to write the JSON; see `write_result`.
        quiet: Whether to print nothing.
    """
    chosen = [m for m in METHODS if not methods or any(fnmatch(m, pattern) for pattern in methods)]
    if not chosen:
        raise InputError(f"Expected --method to match one of {', '.join(METHODS)} (got {', '.join(methods)})")
    skipped = {m: why for m in chosen if (why := missing(m)) is not None}
    cores = threads or os.cpu_count() or 1
    named = {i.name: i for i in instances(only, data)}
    file = _file(out)
    result = _start(file, environment(device), cores, seed)
    runs = result["runs"]
    kept = {k for k, r in runs.items() if "error" not in r and not any(fnmatch(r["method"], p) for p in again)}
    todo = [
        run
        for name in named
        for method in chosen
        for limit in _limits(method, seconds)
        if method not in skipped
        and any(fnmatch(name, pattern) for pattern in METHODS[method].only)
        and (run := Run(name, method, limit, cores, seed)).key not in kept
    ]
    result["known"] |= {i.name: i.best_known for i in named.values() if i.best_known is not None}
    bar = ProgressBar("anytime", quiet=quiet, every=30.0)
    try:
        for done, each in enumerate(todo):
            left = 1.1 * sum(r.limit for r in todo[done:])
            bar.update(f"{each.key}", done, len(todo), left)
            record = measure(each, named[each.instance])
            head = environment(device)
            runs[each.key] = {
                "instance": each.instance, "method": each.method, "limit": each.limit, **record,
                "date": head["date"], "commit": head["commit"], "load": head["load"],
            }  # fmt: skip
            _write(result, file)
    finally:
        bar.close()
    _write(result, file)
    if not quiet:
        _print(result)
        for name, why in skipped.items():
            print(f"skipped: {name}: {why}")
    return result | {"file": str(file)}


def _limits(method: str, seconds: Sequence[float]) -> Sequence[float]:
    return sorted(seconds) if METHODS[method].by_limit else [max(seconds)]


def _file(out: str | Path | None) -> Path:
    target = Path(out) if out is not None else RESULTS
    return target if target.suffix == ".json" else target / "anytime-cpu.json"


def _start(file: Path, head: Mapping[str, Any], threads: int, seed: int) -> dict[str, Any]:
    """The result so far if the file has one of the same machine and settings, else an empty one."""
    settings = {"threads": threads, "seed": seed}
    empty = {"benchmark": "anytime", "environment": dict(head), "protocol": PROTOCOL, **settings}
    if not file.is_file():
        return empty | {"known": {}, "runs": {}}
    try:
        stored = json.loads(file.read_bytes())
        same = {name: stored[name] for name in settings} | {"cpu": stored["environment"]["cpu"]}
        runs, known = dict(stored["runs"]), dict(stored["known"])
    except (ValueError, LookupError, TypeError) as error:
        raise InputError("Expected a result of fgnn bench anytime, to continue it", file=file) from error
    if same != settings | {"cpu": head["cpu"]}:
        raise InputError("Expected a result of this machine with this --threads and --seed (got another)", file=file)
    return empty | {"known": known, "runs": runs}


def _write(result: dict[str, Any], file: Path) -> None:
    ours = [name for name, method in METHODS.items() if method.ours]
    result["summary"] = summarise(result["runs"], result["known"], ours)
    write_result("anytime-cpu", result, file)


def _print(result: Mapping[str, Any]) -> None:
    print(describe(result["environment"]))
    summary = result["summary"]
    methods = list(dict.fromkeys(m for row in summary["scores"].values() for m in row))
    rows = [[name, *(number(row.get(m), 6) for m in methods)] for name, row in summary["scores"].items()]
    show("Score", ("", *methods), rows)
    rows = [[name, *(number(row.get(m)) for m in methods)] for name, row in summary["gap_area"].items()]
    show("Mean gap over the time, %", ("", *methods), rows)
    for method, row in summary["wins"].items():
        print(f"{method}: " + ", ".join(f"{name}: {value}" for name, value in row.items()))
    for key, record in result["runs"].items():
        if "error" in record:
            print(f"no answer: {key}: {record['error']}")
