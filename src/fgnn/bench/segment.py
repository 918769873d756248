"""Speed and memory of `fgnn segment` on generated scans, in a subprocess."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fgnn.bench.common import describe, number, show, write_result
from fgnn.data.scenes import write_terrain
from fgnn.errors import InputError
from fgnn.models.points.segmenter import usual_batch
from fgnn.points.segment import STAGES
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Stages

# Runs the command and prints its peak resident memory.
_MEASURED = """
import resource, sys
from fgnn.cli import build_app
try:
    build_app()(sys.argv[1:], standalone_mode=False)
finally:
    print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr, flush=True)
"""


@dataclass(frozen=True)
class Labelled:
    """One run of the command, including the start of the interpreter."""

    points: int
    votes: int
    seconds: float
    points_per_second: float
    peak_bytes: int
    megabytes_in: float
    megabytes_out: float
    batch: int
    stages: dict[str, float]  # seconds; the rest of ``seconds`` is start-up and loading of weights


def measure(
    scan: Path, points: int, model: str, device: str, votes: int, batch: int | None = None, method: str = "network"
) -> Labelled:
    """Label a scan in a subprocess."""
    pieces = batch or usual_batch(device)
    out = scan.with_name(f"labelled{scan.suffix}")
    command = [
        sys.executable, "-c", _MEASURED, "segment", str(scan), "--model", model, "--out", str(out), "--device", device,
        "--votes", str(votes), "--batch", str(pieces), "--method", method,
    ]  # fmt: skip
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise InputError(f"fgnn segment failed: {done.stderr.strip().splitlines()[-1]}", file=scan)
    peak = next(int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("PEAK"))
    times = next(line for line in done.stdout.splitlines() if line.startswith("seconds: "))
    stages = {
        name: float(taken) for name, taken in (part.split() for part in times.removeprefix("seconds: ").split(", "))
    }
    megabytes_in, megabytes_out = (file.stat().st_size / 1e6 for file in (scan, out))
    out.unlink()
    return Labelled(points, votes, seconds, points / seconds, peak * 1024, megabytes_in, megabytes_out, pieces, stages)


def run(
    points: tuple[int, ...] = (1_000_000, 10_000_000),
    model: str = "lidar-aerial",
    device: str = "cpu",
    votes: tuple[int, ...] = (4,),
    batch: int | None = None,
    out: str | Path | None = None,
    suffix: str = ".laz",
    method: str = "network",
) -> dict[str, Any]:
    """Label generated scans of these sizes and write ``segment.json`` (``segment-cuda.json``, ``segment-pmf.json``)."""
    head = environment(device)
    rows = []
    with tempfile.TemporaryDirectory(prefix="fgnn-segment-") as folder, Stages("bench segment") as stage:
        for count in points:
            scan = Path(folder) / f"scan{suffix}"
            stage(f"writing a scan of {count:,} points")
            write_terrain(scan, count, seed=1)
            for each in votes:
                stage(f"labelling {count:,} points, {each} votes")
                rows.append(measure(scan, count, model, device, each, batch, method))
                stage.log(f"{count:,} points, {each} votes: {rows[-1].seconds:.0f} s")
            scan.unlink()
    payload = {
        "benchmark": "segment",
        "environment": head,
        "setting": {
            "model": model,
            "method": method,
            "device": device,
            "batch": batch or usual_batch(device),
            "format": suffix,
        },
        "rows": [asdict(row) for row in rows],
    }
    kind = method if method != "network" else device.partition(":")[0]
    file = write_result("segment" if kind == "cpu" else f"segment-{kind}", payload, out)
    labeller = f"--model {model}" if method == "network" else f"--method {method}"
    show(
        f"fgnn segment {labeller}, generated {suffix} scans of 4 points per square metre",
        ("points", "votes", "seconds", "points/s", "peak MB", "file MB", "labelled MB", *STAGES),
        [
            (
                f"{r.points:,}", r.votes, number(r.seconds), number(r.points_per_second), number(r.peak_bytes / 1e6),
                number(r.megabytes_in), number(r.megabytes_out), *(number(r.stages[stage]) for stage in STAGES),
            )
            for r in rows
        ],
    )  # fmt: skip
    print(describe(head))
    return payload | {"file": str(file)}
