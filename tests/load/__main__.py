"""The long form, `make load`: each job in a process of its own; prints a table and keeps it as JSON.

python -m tests.load [--only WORD] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fgnn.bench.common import environment, show
from fgnn.files import atomic_write

ROOT = Path(__file__).resolve().parents[2]

# A job, and the most memory it may take beyond the package itself, in bytes.
JOBS: dict[str, int] = {
    "large 1000 max-product": 4 << 30,
    "large 1000 ad3": 4 << 30,
    "many 100000 exact": 1 << 30,
    "many 100000 max-product": 1 << 30,
    "many 100000 ad3": 2 << 30,
    "soak 3000": 1 << 28,
    "clients 32 1000": 1 << 28,
}


def run_job(job: str) -> dict[str, Any]:
    """What a job prints of itself; fails with its output where it fails."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.load.jobs", *job.split()], cwd=ROOT, capture_output=True, text=True
    )
    if told.returncode:
        raise RuntimeError(f"{job} ended with {told.returncode}: {told.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description="Heavy jobs, with their peak memory.")
    parser.add_argument("--only", default="", help="jobs that contain this word")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "load.json")
    given = parser.parse_args()
    rows, failed = [], 0
    for job, most in JOBS.items():
        if given.only not in job:
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
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        kept = [[r["job"], f"{r['peak_bytes'] / 2**20:.0f}", f"{r['above_import_bytes'] / 2**20:.0f}", r["seconds"]]
                for r in rows]  # fmt: skip
    show("Load", ["job", "peak MiB", "above import MiB", "seconds"], kept)
    payload = {"benchmark": "load", "command": "make load", "environment": environment(), "rows": rows}
    with atomic_write(given.out) as file:
        json.dump(payload, file, indent=1)
        file.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
