"""Fuzz every parser in its own process and write the figures: `make fuzz`.

    python -m tests.fuzz.run --cases 60000 --seconds 40 --guided-seconds 8

With ``--add`` the figures are added to those of the file, with other inputs, so that a long run can be continued.

First atheris, if installed, searches for inputs that reach new branches; then these and the seeds are mutated. Each
parser has a limit of cases and of CPU seconds; then follow large and hostile files. The result is
``benchmarks/results/fuzz.json``. The exit code is 1 if there are findings: their inputs are in ``OUT/findings``, and
belong into ``tests/fuzz/corpus`` once fixed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Seconds beyond the limit of a process: start, imports, and one last case.
_GRACE = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="parsers; all by default")
    parser.add_argument("--cases", type=int, default=60_000, help="most mutated inputs per parser")
    parser.add_argument("--seconds", type=float, default=40.0, help="most seconds for them")
    parser.add_argument("--guided-seconds", type=float, default=8.0, help="for the guided search; 0 skips it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--add", action="store_true", help="add to the figures of the file")
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes")
    parser.add_argument("--no-files", dest="files", action="store_false", help="skip the large and hostile files")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--result", type=Path, default=Path("benchmarks/results/fuzz.json"))
    options = parser.parse_args()
    from tests.fuzz.harnesses import HARNESSES

    names = options.names or list(HARNESSES)
    stored = json.loads(options.result.read_text()) if options.add and options.result.is_file() else {}
    earlier: dict[str, Any] = stored.get("parsers", {})
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:  # each thread waits for a process
        for name, row in zip(names, pool.map(lambda name: _one(name, options, earlier.get(name)), names), strict=True):
            rows.append(row)
            print(
                f"{name:<11} {row['cases']:>9,} cases {row['findings']:>3} findings  worst {row['worst_seconds']:.3f} s"
                f"  {row['worst_bytes'] / 1e6:.1f} MB for {row['worst_bytes_input']} bytes",
                flush=True,
            )
            _write(options.result, rows, options)
    if options.files:
        _files(options.result)
    print(f"{sum(r['cases'] for r in rows):,} cases, {sum(r['findings'] for r in rows)} findings: {options.result}")
    sys.exit(any(row["findings"] for row in rows))


def _one(name: str, options: argparse.Namespace, earlier: dict[str, Any] | None) -> dict[str, Any]:
    """The figures of one parser, over both searches and earlier runs."""
    parts = [{"engine": "earlier"} | earlier] if earlier else []
    seed = options.seed + (earlier["cases"] if earlier else 0)  # other inputs than before
    if options.guided_seconds > 0 and find_spec("atheris") is not None:
        parts.append(_process(name, options, options.guided_seconds, "atheris", seed))
    parts.append(_process(name, options, options.seconds, "mutation", seed))
    total = {key: sum(p[key] for p in parts) for key in ("cases", "parsed", "refused", "findings", "seconds")}
    largest = max(parts, key=lambda p: p["worst_bytes"])
    return {
        "parser": name,
        **total,
        "guided_cases": sum(p.get("guided_cases", p["cases"] * (p["engine"] == "atheris")) for p in parts),
        "worst_seconds": max(p["worst_seconds"] for p in parts),
        "worst_bytes": largest["worst_bytes"],
        "worst_bytes_input": largest["worst_bytes_input"],
        "faults": [fault for p in parts for fault in p["faults"]],
    }


def _process(name: str, options: argparse.Namespace, seconds: float, engine: str, seed: int) -> dict[str, Any]:
    """One search in its own process; a process that does not exit normally is a finding."""
    command = [sys.executable, "-m", "tests.fuzz.one", name, "--cases", str(options.cases), "--seconds", str(seconds)]
    command += ["--seed", str(seed), "--out", str(options.out), *(["--guided"] if engine == "atheris" else [])]
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    log = options.out / f"{name}-{engine}.log"
    with log.open("wb") as file:
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, check=False, timeout=_GRACE + 40 * seconds
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
    written = options.out / f"{name}-{engine}.json"
    row: dict[str, Any] = json.loads(written.read_text()) if written.is_file() else _empty_row(name)
    if code != 0:
        row["findings"] += 1
        row["faults"].append(f"the process ended with {code}; see {log.name}")
    # output of a library would be a second line on the terminal
    noise = [line for line in log.read_text(errors="replace").splitlines() if "panicked" in line]
    if noise:
        row["findings"] += len(noise)
        row["faults"].append(noise[0])
    return row


def _empty_row(name: str) -> dict[str, Any]:
    zero = dict.fromkeys(("cases", "parsed", "refused", "findings", "worst_bytes", "worst_bytes_input"), 0)
    return {"parser": name, "engine": "none", **zero, "worst_seconds": 0.0, "seconds": 0.0, "faults": []}


def _write(path: Path, rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write the figures; if parsers were named, the figures of the others stay."""
    from fgnn.bench.common import write_result
    from fgnn.runtime.environment import environment

    before: dict[str, Any] = json.loads(path.read_text()) if (options.names or options.add) and path.is_file() else {}
    parsers = {**before.get("parsers", {}), **{r["parser"]: r for r in rows}}
    whole = parsers.values()
    total = {
        "cases": sum(r["cases"] for r in whole),
        "guided_cases": sum(r["guided_cases"] for r in whole),
        "findings": sum(r["findings"] for r in whole),
        "worst_seconds": max(r["worst_seconds"] for r in whole),
        "worst_bytes": max(r["worst_bytes"] for r in whole),
        "seconds": round(sum(r["seconds"] for r in whole)),
    }
    limits = f"--cases {options.cases} --seconds {options.seconds:g} --guided-seconds {options.guided_seconds:g}"
    command = before.get("command", f"python -m tests.fuzz.run {limits} --seed {options.seed}")
    payload = {"environment": environment(), "command": command, "total": total, "parsers": parsers}
    write_result("fuzz", {**payload, **({"files": before["files"]} if "files" in before else {})}, path)


def _files(path: Path) -> None:
    """Add the cost of reading large and hostile files, by reader, each in its own process."""
    from fgnn.bench.common import write_result
    from tests.fuzz.large import HOSTILE, VALID
    from tests.fuzz.measure import measured

    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for k, (name, suffix, make) in enumerate([*VALID, *((n, s, m) for _, n, s, m in HOSTILE)]):
            file = Path(folder) / f"{k}{suffix}"
            file.write_bytes(make())
            files.append((name, file, None))
        for k, ((name, file, _), cost) in enumerate(zip(files, measured(files), strict=True)):
            row = rows.setdefault(name, {"valid": 0, "hostile": 0, "refused": 0})
            if k < len(VALID):
                row["valid"] += 1
                ratio = cost["grown"] / file.stat().st_size
                row["bytes_per_byte"] = round(max(ratio, row.get("bytes_per_byte", 0.0)), 1)
            else:
                row["hostile"] += 1
                row["refused"] += bool(cost.get("refused"))
                row["hostile_megabytes"] = round(max(cost.get("grown", 0) / 1e6, row.get("hostile_megabytes", 0.0)), 1)
                row["hostile_seconds"] = round(max(cost.get("seconds", 0), row.get("hostile_seconds", 0.0)), 2)
    result = json.loads(path.read_text())
    write_result("fuzz", {**result, "files": rows}, path)


if __name__ == "__main__":
    main()
