"""Benchmark of the solvers and their peers: time per model, ratios, and growth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from fgnn.bench.common import describe, number, show, timed, write_result
from fgnn.bench.growth import draw_growth, growth, growth_stages, print_growth
from fgnn.bench.numpy_messages import numpy_max_product
from fgnn.bench.pgmax_max_product import pgmax_max_product
from fgnn.data import ChainMAP
from fgnn.infer import SolutionBatch, solve
from fgnn.pgm import ModelBatch
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Log, Stages

# The number of models for slow peers and for those that take one model at a time.
_LP_MODELS, _TOULBAR2_MODELS, _LOOP_MODELS, _PGMAX_MODELS = 200, 50, 200, 32

_STAGES = 8  # of `_per_model`

# Options of the solvers.
OPTIONS: dict[str, dict[str, Any]] = {"exact": {}, "max-product": {}, "ad3": {}, "lp": {}}

# Expected lower bounds of the ratios and rates.
BARS = {"exact : toulbar2": 200.0, "ad3 : LP (HiGHS)": 1.0, "max-product : NumPy loop": 20.0}
CUDA_BARS = {"ad3 : LP (HiGHS)": 100.0}
CUDA_RATES = {"exact": 1_000_000.0, "ad3": 100_000.0}


def run(
    count: int = 10_000,
    kind: int = 1,
    device: str = "cpu",
    seed: int = 0,
    grow: bool = True,
    toulbar2_limit: float = 0.0,
    out: str | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Time every solver on chain models, print the tables, and write them as JSON.

    Args:
        count: The number of models; slow peers see fewer.
        kind: The kind of chain data.
        device: The device of the tensor methods; peers run on the CPU.
        seed: The seed of the models.
        grow: Whether to time and draw longer chains and wider windows too.
        toulbar2_limit: Time limit of toulbar2 on each of those in seconds (0: skip it); see `growth.table`.
        out: Where to write the JSON; see `write_result`.
        quiet: Whether to print nothing.
    """
    head = environment(device)
    result: dict[str, Any] = {"benchmark": "solvers", "environment": head, "count": count, "kind": kind, "seed": seed}
    with Stages("bench solvers", total=_STAGES + (growth_stages() if grow else 0), quiet=quiet) as stage:
        result |= _per_model(count, kind, device, seed, stage)
        if grow:
            result |= growth(device, seed, toulbar2_limit, log=stage)
    if not quiet:
        _print(result)
    file = write_result(f"solvers-{torch.device(device).type}", result, out)
    if grow:
        draw_growth(result, Path(file))
    return result | {"file": str(file)}


def _per_model(count: int, kind: int, device: str, seed: int, log: Log) -> dict[str, Any]:
    log(f"{count:,} models and their exact solution")
    batch = ChainMAP(kind).sample(count, seed=seed, device=device, source="cpu")
    host = batch.to("cpu")
    comparison = _Comparison(host, solve(batch, "exact"))
    for method in ("exact", "max-product", "ad3"):
        log(f"{method}, {count:,} models")
        comparison.time_batch(method, method, batch)
    log("LP (HiGHS)")
    comparison.time_batch("LP (HiGHS)", "lp", host.select(slice(0, _LP_MODELS)))

    def toulbar2(b: int) -> Tensor:
        return solve(host.select(slice(b, b + 1)), "toulbar2").assignment[0]

    # the median, since branch and bound takes very long on a few models
    log("toulbar2")
    comparison.time_each("toulbar2", min(_TOULBAR2_MODELS, count), toulbar2, median)
    log("PGMax")
    some = host.select(slice(0, _PGMAX_MODELS))
    try:
        states, seconds = pgmax_max_product(some)
    except (ImportError, AttributeError) as error:  # AttributeError: JAX is too new for PGMax
        comparison.skipped["PGMax"] = f"{error} (pip install pgmax 'jax<0.7')"
    else:
        comparison.add("PGMax", states, seconds / len(some))
    log("NumPy loop")
    models = [host.model(b) for b in range(min(_LOOP_MODELS, count))]
    comparison.time_each("NumPy loop", len(models), lambda b: torch.as_tensor(numpy_max_product(models[b])[0]), mean)
    ratios = _ratios(comparison.rows, torch.device(device).type)
    return {"methods": comparison.rows, "skipped": comparison.skipped, "ratios": ratios}


class _Comparison:
    """Times and quality of all methods on the same models, against their exact solution."""

    def __init__(self, models: ModelBatch, exact: SolutionBatch) -> None:
        self.models = models
        self.labels, self.best = exact.assignment.cpu(), exact.score.cpu()
        self.rows: dict[str, dict[str, Any]] = {}
        self.skipped: dict[str, str] = {}

    def add(self, name: str, assignment: Tensor, seconds: float, **more: Any) -> None:
        """Add a method: its assignments to the first models, and its seconds per model."""
        assignment = assignment.cpu()
        count = len(assignment)
        score, best = self.models.select(slice(0, count)).score(assignment), self.best[:count]
        self.rows[name] = {
            "models": count,
            "ms_per_model": 1000 * seconds,
            "models_per_second": 1 / seconds,
            "agree": 100 * (assignment == self.labels[:count]).double().mean().item(),
            "optimal": 100 * (score >= best - 1e-6 * best.abs().clamp(min=1)).double().mean().item(),
            "infeasible": 100 * (score == -torch.inf).double().mean().item(),
        } | more

    def time_batch(self, name: str, method: str, models: ModelBatch) -> None:
        """Time all models in one call."""
        try:
            timing = timed(lambda: solve(models, method, **OPTIONS[method]), device=models.device)
        except ImportError as error:
            self.skipped[name] = str(error)
            return
        solution: SolutionBatch = timing.result
        bound = solution.bound.tolist()[:_LP_MODELS]
        self.add(name, solution.assignment, timing.median / len(models), peak_bytes=timing.peak_bytes, bound=bound)

    def time_each(
        self, name: str, count: int, work: Callable[[int], Tensor], average: Callable[[list[float]], float]
    ) -> None:
        """Time one call per model."""
        try:
            work(0)
        except ImportError as error:
            self.skipped[name] = str(error)
            return
        seconds, answers = [], []
        for b in range(count):
            start = time.perf_counter()
            answers.append(work(b))
            seconds.append(time.perf_counter() - start)
        self.add(name, torch.stack(answers), average(seconds))


def _ratios(rows: dict[str, dict[str, Any]], device: str) -> dict[str, dict[str, Any]]:
    """The speed-up of the first method over the second, with its expected lower bound."""
    bars: dict[str, float | None] = {**BARS, **(CUDA_BARS if device == "cuda" else {}), "max-product : PGMax": None}
    ratios: dict[str, dict[str, Any]] = {}
    for name, expected in bars.items():
        mine, peer = name.split(" : ")
        if mine in rows and peer in rows:
            ratios[name] = {"ratio": rows[peer]["ms_per_model"] / rows[mine]["ms_per_model"], "expected": expected}
    for name, least in CUDA_RATES.items() if device == "cuda" else ():
        ratios[f"{name}, models/s"] = {"ratio": rows[name]["models_per_second"], "expected": least}
    if {"ad3", "LP (HiGHS)"} <= rows.keys():
        ours, lp = rows["ad3"]["bound"], rows["LP (HiGHS)"]["bound"]
        gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, lp, strict=False)]
        ratios["ad3 : LP (HiGHS)"]["largest_relative_difference_of_value"] = max(gaps)
    for row in rows.values():
        row.pop("bound", None)
    return ratios


def _print(result: Mapping[str, Any]) -> None:
    print(describe(result["environment"]))
    rows = [
        (name, r["models"], number(r["ms_per_model"]), number(r["models_per_second"]),
         f"{r['agree']:.1f}", f"{r['optimal']:.0f}", f"{r['infeasible']:.0f}")
        for name, r in result["methods"].items()
    ]  # fmt: skip
    columns = ("method", "models", "ms per model", "models/s", "agree %", "optimal %", "infeasible %")
    show(f"{result['count']:,} models of Dataset{result['kind']}", columns, rows)
    for name, why in result["skipped"].items():
        print(f"skipped: {name}: {why}")
    ratios = [
        (name, number(r["ratio"]), number(r["expected"]), _reached(r["ratio"], r["expected"]))
        for name, r in result["ratios"].items()
    ]
    show("Ratios of time per model", ("", "measured", "expected", "reached"), ratios)
    gap = result["ratios"].get("ad3 : LP (HiGHS)", {}).get("largest_relative_difference_of_value")
    if gap is not None:
        print(f"ad3's value differs from HiGHS's by at most {gap:.1e} (relative)")
    for name, size in (("lengths", "length"), ("windows", "window")):
        if name in result:
            print_growth(size, result[name])


def _reached(ratio: float, expected: float | None) -> str | None:
    return None if expected is None else "yes" if ratio >= expected else "no"
