"""Fuzz one parser: `python -m tests.fuzz.one uai --cases 10000 --out DIR`.

With ``--guided`` atheris searches for inputs that reach new branches and stores them in ``DIR/corpus``; without it,
these and the seeds are mutated, several times faster because nothing is traced. The input of a fault is stored, and
the search continues; only a crash, a hang or an excessive allocation ends the process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

_HANG = 20
_MOST_MEGABYTES = 4096
_LONGEST = 4096
_BATCH = 128  # inputs per measurement of memory


class Tally:
    """Counts the outcomes and writes them periodically, since the process may be killed."""

    def __init__(self, name: str, out: Path, engine: str) -> None:
        self.out, self.findings = out, out / "findings" / name
        self.start, self.written = time.process_time(), time.monotonic()
        self.faults: dict[str, str] = {}
        self.numbers: dict[str, Any] = {
            "parser": name, "engine": engine, "cases": 0, "parsed": 0, "refused": 0, "findings": 0,
            "worst_seconds": 0.0, "worst_bytes": 0, "worst_bytes_input": 0,
        }  # fmt: skip

    def add(self, data: bytes, case: Any) -> None:
        n = self.numbers
        n["cases"] += 1
        n["parsed" if case.parsed else "refused"] += not case.fault
        n["worst_seconds"] = max(n["worst_seconds"], case.seconds)
        if case.grown > n["worst_bytes"]:
            n["worst_bytes"], n["worst_bytes_input"] = case.grown, len(data)
        if case.fault:
            self._keep(data, case.fault)
        if time.monotonic() - self.written > 1:
            self.write()

    def _keep(self, data: bytes, fault: str) -> None:
        kind = fault[: fault.find(": ")] if ": " in fault else fault[:30]
        self.numbers["findings"] += 1
        if kind in self.faults or len(self.faults) > 50:
            return
        self.faults[kind] = fault
        self.findings.mkdir(parents=True, exist_ok=True)
        (self.findings / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
        print(f"{self.numbers['parser']}: {fault}", flush=True)

    @property
    def spent(self) -> float:
        """CPU seconds so far."""
        return time.process_time() - self.start

    def write(self) -> None:
        self.written = time.monotonic()
        self.numbers["seconds"] = round(self.spent, 1)
        self.numbers["faults"] = list(self.faults.values())
        path = self.out / f"{self.numbers['parser']}-{self.numbers['engine']}.json"
        path.with_suffix(".part").write_text(json.dumps(self.numbers, indent=1), encoding="utf-8")
        path.with_suffix(".part").replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="CPU seconds")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true", help="use atheris")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.guided:
        import atheris

        _guided(options, atheris)
    else:
        _plain(options)


def _plain(options: argparse.Namespace) -> None:
    from tests.fuzz.harnesses import HARNESSES
    from tests.fuzz.watch import attempt, attempt_all

    def hang(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"did not finish within {_HANG} s")

    signal.signal(signal.SIGVTALRM, hang)
    harness, tally = HARNESSES[options.name], Tally(options.name, options.out, "mutation")
    rng = random.Random(options.seed)
    for data in harness.seeds:
        attempt(harness.read, data)  # imports and caches do not count
    # inputs of the guided search; seeds are drawn as often as all of them
    reached = [path.read_bytes() for path in sorted((options.out / "corpus" / options.name).glob("*"))]
    while tally.numbers["cases"] < options.cases and tally.spent < options.seconds:
        count = min(_BATCH, options.cases - tally.numbers["cases"])
        inputs = [
            harness.mutated(rng.choice(reached if reached and rng.random() < 0.5 else harness.seeds), rng)
            for _ in range(count)
        ]
        signal.setitimer(signal.ITIMER_VIRTUAL, _HANG)
        cases = attempt_all(harness.read, inputs)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        for data, case in zip(inputs, cases, strict=True):
            tally.add(data, case)
    tally.write()


def _guided(options: argparse.Namespace, atheris: Any) -> None:
    # the instrumented modules must be imported here first
    with atheris.instrument_imports(include=_modules(options.name), enable_loader_override=False):
        from tests.fuzz.harnesses import HARNESSES
        from tests.fuzz.watch import attempt

        harness = HARNESSES[options.name]
        for data in harness.seeds:
            attempt(harness.read, data)
    tally = Tally(options.name, options.out, "atheris")
    corpus = options.out / "corpus" / options.name
    corpus.mkdir(parents=True, exist_ok=True)
    for k, data in enumerate(harness.seeds):
        (corpus / f"seed-{k}").write_bytes(data)
    os.environ["PYTHONHASHSEED"] = "0"

    def one(data: bytes) -> None:
        tally.add(data, attempt(harness.read, data))
        if tally.numbers["cases"] >= options.cases or tally.spent > options.seconds:
            tally.write()
            os._exit(0)

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        draw = rng.random()
        if draw < 0.6:  # mutate seeds and inputs of the corpus about equally often
            return harness.mutated(rng.choice(harness.seeds) if draw < 0.35 else data, rng)[:most]
        return bytes(atheris.Mutate(data, len(data)))[:most]

    flags = [f"-seed={options.seed + 1}", f"-timeout={15 * _HANG}", f"-rss_limit_mb={_MOST_MEGABYTES}"]
    flags += [
        f"-max_len={max(_LONGEST, *map(len, harness.seeds))}",
        "-verbosity=0",
        f"-artifact_prefix={options.out}/{options.name}-",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=change)
    atheris.Fuzz()


def _modules(name: str) -> list[str]:
    """The modules to instrument, named before any of them is imported."""
    guides = {
        "recipe": ["fgnn.schema", "fgnn.tasks.recipe", "yaml"],
        "plan": ["fgnn.schema", "tools.sweep", "yaml"],
        "notation": ["fgnn.nn.notation"],
        "classes": ["fgnn.data.labelled"],
        "weights": ["fgnn.weights"],
        "card": ["fgnn.weights", "json"],
        "checkpoint": ["fgnn.weights", "fgnn.train.checkpoint"],
        "stored": ["fgnn.data", "fgnn.pgm.batch"],
        "tar": ["tools.ship", "tools.learning_curves", "fgnn.weights", "tarfile"],
        "playground": ["fgnn.play", "fgnn.pgm"],
        "http": ["fgnn.play", "http.server"],
        **{name: ["fgnn.cli"] for name in ("options", "marginal-options")},
        "marginals": ["fgnn.pgm", "fgnn.infer.probability"],
        "samples": ["fgnn.data_sample", "fgnn.graph"],
        "names": ["fgnn.points"],
        "units": ["fgnn.pgm.model"],
        "npy": ["fgnn.points", "numpy.lib"],
        "npz": ["fgnn.points", "numpy.lib", "zipfile"],
        "las": ["fgnn.points", "laspy"],
        "laz": ["fgnn.points", "laspy"],
        **{name: ["fgnn.data"] for name in ("blocks", "shapes")},
        **{name: ["fgnn.data"] for name in ("packed", "listed", "shape-text", "room", "room-text")},
        **{name: ["fgnn.points"] for name in ("ply", "pcd", "e57", "bin", "txt", "csv", "tiles")},
    }
    return guides.get(name, ["fgnn.pgm"])


if __name__ == "__main__":
    main()
