"""The long form, `make load`: run each job in its own process; print and write a table.

python -m tests.load [--only WORD] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fgnn.bench.common import show
from fgnn.files import atomic_write
from fgnn.runtime.environment import environment

ROOT = Path(__file__).resolve().parents[2]

# Each job with its limit of additional memory beyond the imports, in bytes.
JOBS: dict[str, int] = {
    "large 1000 max-product": 1 << 30,
    "large 1000 ad3": 3 << 29,
    "many 100000 exact": 1 << 30,
    "many 100000 max-product": 1 << 30,
    "many 100000 ad3": 2 << 30,
    "soak 3000": 1 << 28,
    "clients 32 1000": 1 << 28,
}


def run_job(job: str) -> dict[str, Any]:
    """Run a job and return its figures."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.load.jobs", *job.split()], cwd=ROOT, capture_output=True, text=True
    )
    if process.returncode:
        raise RuntimeError(f"{job} ended with {process.returncode}: {process.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description="Heavy jobs, with their peak memory.")
    parser.add_argument("--only", default="", help="jobs that contain this word")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "load.json")
    options = parser.parse_args()
    failed = 0
    for job, most in JOBS.items():
        if options.only not in job:
            continue
        try:
            row = run_job(job)
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            failed += 1
            continue
        row |= {"command": f"python -m tests.load.jobs {job}", "allowed_bytes": most}
        row["held"] = row["above_import_bytes"] <= most
        failed += not row["held"]
        print(json.dumps(row), file=sys.stderr, flush=True)
        keep(row, options.out)
    rows = _read_rows(options.out)
    memory = ("peak_bytes", "above_import_bytes", "allowed_bytes")
    cells = [[r["job"], *(f"{r[key] / 2**20:.0f}" for key in memory), r["seconds"]] for r in rows]
    show("Load", ["job", "peak MiB", "above import MiB", "allowed MiB", "seconds"], cells)
    return 1 if failed else 0


def keep(row: dict[str, Any], out: Path) -> None:
    """Add or replace a job's row in the result file."""
    rows = {r["job"]: r for r in [*_read_rows(out), row | {"date": environment()["date"]}]}
    ordered = [rows[job] for job in JOBS if job in rows]
    payload = {"benchmark": "load", "command": "make load", "environment": environment(), "rows": ordered}
    with atomic_write(out) as file:
        json.dump(payload, file, indent=1)
        file.write("\n")


def _read_rows(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.is_file() else []
    return rows


if __name__ == "__main__":
    sys.exit(main())
