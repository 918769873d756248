"""The long form, `make faults`: every fault at many random places; prints a table and keeps it as JSON.

python -m tests.faults [--seed N] [--only WORD] [--minutes M] [--add] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from fgnn.bench.common import show
from fgnn.files import atomic_write
from fgnn.runtime.environment import environment
from tests.faults.machine import machine_scenarios
from tests.faults.nursery import ROOT, Nursery
from tests.faults.scenarios import Reference, Scenario, command_scenarios, writer_scenarios


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Inject faults and count what survives."
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="faults or places that contain this word")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no more after this time")
    parser.add_argument("--add", action="store_true", help="add to what the file counts already")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "faults.json")
    given = parser.parse_args()
    begin = time.monotonic()
    nursery, place = Nursery(), Path(tempfile.mkdtemp(prefix="fgnn-faults-"))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if given.add and given.out.is_file():
        earlier = json.loads(given.out.read_text(encoding="utf-8"))
        rows = {(r["fault"], r["where"]): r for r in earlier["rows"]}
        begin -= earlier["seconds"]
    end = time.monotonic() + 60 * given.minutes
    try:
        reference = Reference(nursery, place / "undisturbed")
        scenarios = writer_scenarios(nursery) + machine_scenarios(nursery, reference)
        scenarios += command_scenarios(nursery, reference)
        wanted = [s for s in scenarios if given.only in s.fault or given.only in s.where]
        # one of each, then another of each, so that any time is spent on all
        for turn in range(max(s.often for s in wanted)):
            for k, scenario in enumerate(wanted):
                if turn < scenario.often and time.monotonic() < end:
                    _once(scenario, place / f"{turn}-{k}", given.seed, rows)
            _keep(given, rows, begin)
    finally:
        nursery.close()
        shutil.rmtree(place, ignore_errors=True)
    lines = list(rows.values())
    show("Faults", ["fault", "where", "injected", "survived", "seconds"], [
        [r["fault"], r["where"], r["injected"], r["survived"], round(r["seconds"])] for r in lines
    ])  # fmt: skip
    total = _keep(given, rows, begin)
    print(f"{total['injected']} faults, {total['survived']} survived with nothing lost")
    return 0 if total["injected"] == total["survived"] else 1


def _once(scenario: Scenario, place: Path, seed: int, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    fresh = {"fault": scenario.fault, "where": scenario.where, "injected": 0, "survived": 0, "seconds": 0.0, "lost": []}
    row = rows.setdefault((scenario.fault, scenario.where), fresh)
    begin = time.monotonic()
    origin = f"{seed} {scenario.fault} {scenario.where} {row['injected']}"
    row["injected"] += 1
    try:
        scenario.strike(place, random.Random(origin))
    except Exception as error:  # counted and shown: the others shall still have their turn
        traceback.print_exc()
        row["lost"].append(f"{origin}: {type(error).__name__}: {str(error)[:300]}")
    else:
        row["survived"] += 1
    shutil.rmtree(place, ignore_errors=True)
    row["seconds"] = round(row["seconds"] + time.monotonic() - begin, 1)
    print(f"{scenario.fault}, {scenario.where}: {row['survived']} of {row['injected']}", file=sys.stderr, flush=True)


def _keep(given: argparse.Namespace, rows: dict[tuple[str, str], dict[str, Any]], begin: float) -> dict[str, int]:
    total = {key: sum(r[key] for r in rows.values()) for key in ("injected", "survived")}
    payload = {
        "benchmark": "faults",
        "command": "make faults",
        "seed": given.seed,
        "seconds": round(time.monotonic() - begin),
        "environment": environment(),
        "total": total,
        "rows": list(rows.values()),
    }
    with atomic_write(given.out) as file:
        json.dump(payload, file, indent=1)
        file.write("\n")
    return total


if __name__ == "__main__":
    sys.exit(main())
