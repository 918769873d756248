"""Checks that run for hours: batch by batch, continuing from the results of an earlier run."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fgnn.files import atomic_write
from fgnn.runtime.environment import environment

# The results so far, and those of one batch, which are added to them in place.
Add = Callable[[dict[str, Any], Any], None]


def check_batches(
    run_batch: Callable[[int], tuple[Any, list[str]]],
    add: Add,
    setting: dict[str, Any],
    *,
    models: int,
    command: str,
    out: Path | None = None,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """Run batches until ``models`` models are checked; returns the results.

    Args:
        run_batch: Checks the batch of a number; returns its counts and faults.
        add: Adds the counts of a batch to the results.
        setting: What results must share to be added up, with ``size``, the models in a batch.
        command: How to run it again.
        out: Where results are kept; an earlier run's are continued.
        seconds: Stop after this time.
    """
    results: dict[str, Any] = {**setting, "models": 0, "batches": 0, "seconds": 0.0, "faults": []}
    if out is not None and out.is_file():
        stored = json.loads(out.read_text(encoding="utf-8"))
        if any(stored.get(key) != value for key, value in setting.items()):
            wanted = ", ".join(f"{key} {value}" for key, value in setting.items() if value is not None)
            raise SystemExit(f"{out}: Expected results of {wanted} (got others)")
        results = stored
    begin, before = time.perf_counter(), results["seconds"]
    while results["models"] < models and time.perf_counter() - begin < seconds:
        counts, faults = run_batch(results["batches"])
        add(results, counts)
        results["faults"] += faults
        results["batches"] += 1
        results["models"] += setting["size"]
        results["seconds"] = round(before + time.perf_counter() - begin, 1)
        results["command"] = command
        if out is not None and (results["batches"] % 20 == 0 or results["models"] >= models):
            results["environment"] = environment()
            with atomic_write(out) as file:
                file.write(json.dumps(results, indent=1) + "\n")
    return results


def arguments(doc: str | None, *, models: int, size: int, out: str) -> argparse.ArgumentParser:
    """The options that every long check has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=models)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=size, help="models of one structure in a batch")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time; run again to continue")
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def report_faults(results: dict[str, Any]) -> None:
    """Print the first faults; exit with 1 if there are any."""
    for fault in results["faults"][:20]:
        print(fault)
    raise SystemExit(1 if results["faults"] else 0)
