"""Solvers against each other and against peers, in one run: time per model, ratios, and how time grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from fgnn.bench.common import describe, number, show, timed, write_result
from fgnn.bench.growth import draw_growth, growth, print_growth
from fgnn.bench.numpy_max_product import numpy_max_product
from fgnn.bench.pgmax_max_product import pgmax_max_product
from fgnn.data import ChainMAP
from fgnn.infer import SolutionBatch, solve
from fgnn.pgm import ModelBatch
from fgnn.runtime.environment import environment

# Peers that take one model at a time, or much longer, see so many of the models.
_LP_MODELS, _TOULBAR2_MODELS, _LOOP_MODELS, _PGMAX_MODELS = 200, 50, 200, 32

# Of the solvers, in all tables.
OPTIONS: dict[str, dict[str, Any]] = {"exact": {}, "max-product": {}, "ad3": {}, "lp": {}}

# What the ratios are expected to be at least.
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
    """Time every solver on chain models, print the tables, and keep them as JSON.

    Args:
        count: Models; peers that take one at a time see fewer.
        kind: Of the chain data.
        device: Of the tensor methods. Peers run on the CPU always.
        seed: Of the models.
        grow: Also time longer chains and wider windows, and draw a picture of them.
        toulbar2_limit: Seconds for toulbar2 on each of those (0: leave it out); not on longer chains than the first
            that it does not prove.
        out: Where to write the JSON; see `write_result`.
        quiet: Print nothing.
    """
    head = environment(device)
    result: dict[str, Any] = {"benchmark": "solvers", "environment": head, "count": count, "kind": kind, "seed": seed}
    result |= _per_model(count, kind, device, seed)
    if grow:
        result |= growth(device, seed, toulbar2_limit)
    if not quiet:
        _print(result)
    file = write_result(f"solvers-{torch.device(device).type}", result, out)
    if grow:
        draw_growth(result, Path(file))
    return result | {"file": str(file)}


# ---- time per model -------------------------------------------------------------------------------------------


def _per_model(count: int, kind: int, device: str, seed: int) -> dict[str, Any]:
    batch = ChainMAP(kind).sample(count, seed=seed, device=device, source="cpu")
    host = batch.to("cpu")
    truth = solve(batch, "exact").score.cpu()
    rows: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}

    def row(name: str, score: torch.Tensor, agree: float, seconds: float, **more: Any) -> None:
        best = truth[: len(score)]
        rows[name] = {
            "models": len(score),
            "ms_per_model": 1000 * seconds,
            "models_per_second": 1 / seconds,
            "agree": agree,
            "optimal": 100 * (score.cpu() >= best - 1e-6 * best.abs().clamp(min=1)).double().mean().item(),
            "infeasible": 100 * (score.cpu() == -torch.inf).double().mean().item(),
        } | more

    labels = solve(batch, "exact").assignment.cpu()

    def agreement(assignment: torch.Tensor) -> float:
        return 100 * (assignment.cpu() == labels[: len(assignment)]).double().mean().item()

    def whole(name: str, method: str, models: ModelBatch) -> None:
        """All models in one call: the median of three calls, over the models."""
        try:
            taken = timed(lambda: solve(models, method, **OPTIONS[method]), device=models.device)
        except ImportError as error:
            skipped[name] = str(error)
            return
        found: SolutionBatch = taken.result
        row(
            name, found.score, agreement(found.assignment), taken.median / len(models),
            peak_bytes=taken.peak_bytes, bound=found.bound.tolist()[:_LP_MODELS],
        )  # fmt: skip

    def one_by_one(name: str, most: int, work: Callable[[int], torch.Tensor], typical: Callable[..., float]) -> None:
        """One model a call: the mean or the median over the models."""
        try:
            work(0)
        except ImportError as error:
            skipped[name] = str(error)
            return
        seconds, answers = [], []
        for b in range(min(most, count)):
            start = time.perf_counter()
            answers.append(work(b))
            seconds.append(time.perf_counter() - start)
        assignment = torch.stack(answers)
        row(name, host.select(slice(0, len(answers))).score(assignment), agreement(assignment), typical(seconds))

    whole("exact", "exact", batch)
    whole("max-product", "max-product", batch)
    whole("ad3", "ad3", batch)
    whole("LP (HiGHS)", "lp", host.select(slice(0, _LP_MODELS)))
    one_by_one(
        "toulbar2",
        _TOULBAR2_MODELS,
        lambda b: solve(host.select(slice(b, b + 1)), "toulbar2").assignment[0],
        median,  # branch and bound takes very long on a few
    )
    some = host.select(slice(0, _PGMAX_MODELS))
    try:
        states, seconds = pgmax_max_product(some)
    except (ImportError, AttributeError) as error:  # the latter under a JAX newer than it knows
        skipped["PGMax"] = f"{error} (pip install pgmax 'jax<0.7')"
    else:
        row("PGMax", some.score(states), agreement(states), seconds / len(some))
    models = [host.model(b) for b in range(min(_LOOP_MODELS, count))]
    one_by_one("NumPy loop", _LOOP_MODELS, lambda b: torch.as_tensor(numpy_max_product(models[b])[0]), mean)
    return {"methods": rows, "skipped": skipped, "ratios": _ratios(rows, torch.device(device).type)}


def _ratios(rows: dict[str, dict[str, Any]], device: str) -> dict[str, dict[str, Any]]:
    """How much less time per model the first takes than the second, beside what is expected."""
    bars: dict[str, float | None] = {**BARS, **(CUDA_BARS if device == "cuda" else {}), "max-product : PGMax": None}
    found: dict[str, dict[str, Any]] = {}
    for name, expected in bars.items():
        mine, peer = name.split(" : ")
        if mine in rows and peer in rows:
            found[name] = {"ratio": rows[peer]["ms_per_model"] / rows[mine]["ms_per_model"], "expected": expected}
    for name, least in CUDA_RATES.items() if device == "cuda" else ():
        found[f"{name}, models/s"] = {"ratio": rows[name]["models_per_second"], "expected": least}
    if {"ad3", "LP (HiGHS)"} <= rows.keys():
        ours, lp = rows["ad3"]["bound"], rows["LP (HiGHS)"]["bound"]
        gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, lp, strict=False)]
        found["ad3 : LP (HiGHS)"]["largest_relative_difference_of_value"] = max(gaps)
    for taken in rows.values():
        taken.pop("bound", None)
    return found


# ---- printing -------------------------------------------------------------------------------------------------


def _print(result: Mapping[str, Any]) -> None:
    print(describe(result["environment"]))
    rows = [
        (name, r["models"], number(r["ms_per_model"]), number(r["models_per_second"]),
         f"{r['agree']:.1f}", f"{r['optimal']:.0f}", f"{r['infeasible']:.0f}")
        for name, r in result["methods"].items()
    ]  # fmt: skip
    columns = ("method", "models", "ms a model", "models/s", "agree %", "wholly optimal %", "infeasible %")
    show(f"{result['count']:,} models of Dataset{result['kind']}", columns, rows)
    for name, why in result["skipped"].items():
        print(f"left out: {name}: {why}")
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
