"""The long form, `make faults`: inject every fault at many random points; print and write a table.

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
from tests.faults.fork_server import ROOT, ForkServer
from tests.faults.machine import machine_scenarios
from tests.faults.scenarios import Reference, Scenario, command_scenarios, writer_scenarios


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Inject faults and count the survivors."
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="faults or commands that contain this word")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no more faults after this time")
    parser.add_argument("--add", action="store_true", help="add to the counts of the file")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "faults.json")
    options = parser.parse_args()
    begin = time.monotonic()
    server, folder = ForkServer(), Path(tempfile.mkdtemp(prefix="fgnn-faults-"))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if options.add and options.out.is_file():
        earlier = json.loads(options.out.read_text(encoding="utf-8"))
        rows = {(r["fault"], r["where"]): r for r in earlier["rows"]}
        begin -= earlier["seconds"]
    end = time.monotonic() + 60 * options.minutes
    try:
        reference = Reference(server, folder / "undisturbed")
        scenarios = writer_scenarios(server) + machine_scenarios(server, reference)
        scenarios += command_scenarios(server, reference)
        selected = [s for s in scenarios if options.only in s.fault or options.only in s.where]
        # round robin, so that any amount of time covers all scenarios
        for turn in range(max(s.often for s in selected)):
            for k, scenario in enumerate(selected):
                if turn < scenario.often and time.monotonic() < end:
                    _once(scenario, folder / f"{turn}-{k}", options.seed, rows)
            _keep(options, rows, begin)
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
    lines = list(rows.values())
    show("Faults", ["fault", "where", "injected", "survived", "seconds"], [
        [r["fault"], r["where"], r["injected"], r["survived"], round(r["seconds"])] for r in lines
    ])  # fmt: skip
    total = _keep(options, rows, begin)
    print(f"{total['injected']} faults, {total['survived']} survived without loss")
    return 0 if total["injected"] == total["survived"] else 1


def _once(scenario: Scenario, folder: Path, seed: int, rows: dict[tuple[str, str], dict[str, Any]]) -> None:
    fresh = {"fault": scenario.fault, "where": scenario.where, "injected": 0, "survived": 0, "seconds": 0.0, "lost": []}
    row = rows.setdefault((scenario.fault, scenario.where), fresh)
    begin = time.monotonic()
    origin = f"{seed} {scenario.fault} {scenario.where} {row['injected']}"
    row["injected"] += 1
    try:
        scenario.strike(folder, random.Random(origin))
    except Exception as error:  # counted and shown; the other scenarios still run
        traceback.print_exc()
        row["lost"].append(f"{origin}: {type(error).__name__}: {str(error)[:300]}")
    else:
        row["survived"] += 1
    shutil.rmtree(folder, ignore_errors=True)
    row["seconds"] = round(row["seconds"] + time.monotonic() - begin, 1)
    print(f"{scenario.fault}, {scenario.where}: {row['survived']} of {row['injected']}", file=sys.stderr, flush=True)


def _keep(options: argparse.Namespace, rows: dict[tuple[str, str], dict[str, Any]], begin: float) -> dict[str, int]:
    total = {key: sum(r[key] for r in rows.values()) for key in ("injected", "survived")}
    payload = {
        "benchmark": "faults",
        "command": "make faults",
        "seed": options.seed,
        "seconds": round(time.monotonic() - begin),
        "environment": environment(),
        "total": total,
        "rows": list(rows.values()),
    }
    with atomic_write(options.out) as file:
        json.dump(payload, file, indent=1)
        file.write("\n")
    return total


if __name__ == "__main__":
    sys.exit(main())
