"""Run the tests that depend most on other packages in one set of versions, and record the outcome for the docs.

    build/oldest/bin/python -m tests.sets oldest

`make oldest`, `make newest` and `make pythons` install a set and call this module. Each set has a row in
``benchmarks/results/sets.json``; with further arguments, which go to pytest, no row is written.
"""

from __future__ import annotations

import json
import platform
import signal
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "sets.json"
CHOSEN = (
    "pgm", "points", "graph", "infer", "nn", "models", "data", "play", "report", "fuzz", "security", "cli",
    "tasks/test_recipe.py", "tools/test_sweep.py", "train/test_checkpoint.py",
)  # fmt: skip
SHOWN = ("torch", "numpy", "scipy", "safetensors", "typer", "h5py", "laspy", "pytoulbar2", "torch-geometric")


class Tally:
    """Counts the outcomes of the tests."""

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(("passed", "skipped", "failed"), 0)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.numbers[report.outcome] += 1
            if report.failed:
                self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.numbers["failed"] += 1
            self.failed.append(report.nodeid)


def main(name: str, more: list[str]) -> int:
    # a shell that starts us in the background ignores SIGINT, and tests that send it would hang
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tally, begin = Tally(), time.monotonic()
    places = [str(ROOT / "tests" / place) for place in CHOSEN]
    marks = ["-m", "not slow and not gpu and not data", "-p", "no:cacheprovider"]
    code = int(pytest.main([*marks, *(more or places)], plugins=[tally]))
    if not more:
        row = tally.numbers | {"seconds": round(time.monotonic() - begin), "failures": tally.failed}
        _keep(f"{name}, Python {platform.python_version()}", {"set": name, **_versions(), **row})
    return code


def _versions() -> dict[str, str]:
    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "absent"

    return {"python": platform.python_version()} | {package: installed(package) for package in SHOWN}


def _keep(key: str, row: dict[str, Any]) -> None:
    from fgnn.files import atomic_write
    from fgnn.runtime.environment import environment

    previous = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
    head = environment()
    rows = {**previous.get("rows", {}), key: {**row, "date": head["date"], "commit": head["commit"]}}
    payload = {"benchmark": "sets", "command": "make oldest newest pythons", "rows": dict(sorted(rows.items()))}
    with atomic_write(RESULT) as file:
        json.dump(payload, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
