"""Solvers against each other and against peers, in one run: time per model, ratios, and how time grows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median
from typing import Any

import torch

from fgnn.bench.common import describe, environment, number, show, timed, write_result
from fgnn.bench.numpy_max_product import numpy_max_product
from fgnn.data import ChainMAP
from fgnn.infer import SolutionBatch, solve
from fgnn.pgm import ModelBatch

LENGTHS = (30, 100, 300, 1000, 3000)
WINDOWS = (8, 12, 16, 20)
# Peers that take one model at a time see so many of the models.
_LP_MODELS, _TOULBAR2_MODELS, _LOOP_MODELS = 200, 50, 200
# In the tables of growth every length has about as many variables in all, and max-product a fixed number of iterations.
_VARIABLES, _SWEEPS = 30_000, 50

# Of the solvers, in all tables.
OPTIONS: dict[str, dict[str, Any]] = {"exact": {}, "max-product": {}, "ad3": {}, "lp": {}}

# What the ratios are expected to be at least.
BARS = {"exact : toulbar2": 200.0, "ad3 : LP (HiGHS)": 1.0, "max-product : NumPy loop": 20.0}
CUDA_BARS = {"ad3 : LP (HiGHS)": 100.0, "exact, models/s": 300_000.0}


def run(
    count: int = 10_000,
    kind: int = 1,
    device: str = "cpu",
    seed: int = 0,
    growth: bool = True,
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
        growth: Also time longer chains and wider windows.
        toulbar2_limit: Seconds for toulbar2 on each of those (0: leave it out).
        out: Where to write the JSON; see `write_result`.
        quiet: Print nothing.
    """
    head = environment(device)
    result: dict[str, Any] = {"benchmark": "solvers", "environment": head, "count": count, "kind": kind, "seed": seed}
    result |= _per_model(count, kind, device, seed)
    if growth:
        result["lengths"] = _growth([ChainMAP(2, length=n) for n in LENGTHS], device, seed, toulbar2_limit)
        result["windows"] = _growth([ChainMAP(2, length=100, window=w) for w in WINDOWS], device, seed, toulbar2_limit)
    if not quiet:
        _print(result)
    result["file"] = str(write_result(f"solvers-{torch.device(device).type}", result, out))
    return result


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
    models = [host.model(b) for b in range(min(_LOOP_MODELS, count))]
    one_by_one("NumPy loop", _LOOP_MODELS, lambda b: torch.as_tensor(numpy_max_product(models[b])[0]), mean)
    return {"methods": rows, "skipped": skipped, "ratios": _ratios(rows, torch.device(device).type)}


def _ratios(rows: dict[str, dict[str, Any]], device: str) -> dict[str, dict[str, Any]]:
    """How much less time per model the first takes than the second, beside what is expected."""
    bars = CUDA_BARS if device == "cuda" else {}
    found: dict[str, dict[str, Any]] = {}
    for name in BARS:
        mine, peer = name.split(" : ")
        if mine in rows and peer in rows:
            ratio = rows[peer]["ms_per_model"] / rows[mine]["ms_per_model"]
            found[name] = {"ratio": ratio, "expected": bars.get(name, BARS[name])}
    if device == "cuda" and "exact" in rows:
        expected = CUDA_BARS["exact, models/s"]
        found["exact, models/s"] = {"ratio": rows["exact"]["models_per_second"], "expected": expected}
    if {"ad3", "LP (HiGHS)"} <= rows.keys():
        ours, lp = rows["ad3"]["bound"], rows["LP (HiGHS)"]["bound"]
        gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, lp, strict=False)]
        found["ad3 : LP (HiGHS)"]["largest_relative_difference_of_value"] = max(gaps)
    for taken in rows.values():
        taken.pop("bound", None)
    return found


# ---- growth ---------------------------------------------------------------------------------------------------


def feasible_states(window: int, at_most: int) -> int:
    """How many states of the last ``window - 1`` variables an elimination step goes through."""
    return sum(math.comb(window - 1, ones) for ones in range(min(at_most, window - 1) + 1))


def _growth(families: Sequence[ChainMAP], device: str, seed: int, toulbar2_limit: float) -> list[dict[str, Any]]:
    """Seconds per model as chains or windows grow."""
    options = {name: OPTIONS[name] for name in ("exact", "max-product", "ad3")}
    options["max-product"] = options["max-product"] | {"iterations": _SWEEPS, "tolerance": -1.0}
    table = []
    for data in families:
        states = feasible_states(data.window, data.budget)
        entry: dict[str, Any] = {"length": data.length, "window": data.window, "feasible_states": states}
        models = max(1, _VARIABLES // data.length)
        batch = data.sample(models, seed=seed, device=device, source="cpu")
        for name, chosen in options.items():
            # wide windows cost elimination so much a model that a few show it
            some = batch.select(slice(0, max(1, min(models, 20_000_000 // (states * data.length)))))
            some = some if name == "exact" else batch
            try:
                taken = timed(lambda m=name, s=some, c=chosen: solve(s, m, **c), device=device)  # type: ignore[misc]
            except ImportError:
                continue
            entry[name] = taken.median / len(some)
        if toulbar2_limit > 0:
            found = solve(batch.select(slice(0, 1)).to("cpu"), "toulbar2", time_limit=toulbar2_limit)
            entry["toulbar2"] = found.seconds
            entry["toulbar2_status"] = found.status[0]
        table.append(entry)
    return table


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The p of time ~ size^p, by least squares in logarithms."""
    x, y = torch.tensor(sizes).double().log(), torch.tensor(seconds).double().log()
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


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
        (name, number(r["ratio"]), number(r["expected"]), "yes" if r["ratio"] >= r["expected"] else "no")
        for name, r in result["ratios"].items()
    ]
    show("Ratios of time per model", ("", "measured", "expected", "reached"), ratios)
    gap = result["ratios"].get("ad3 : LP (HiGHS)", {}).get("largest_relative_difference_of_value")
    if gap is not None:
        print(f"ad3's value differs from HiGHS's by at most {gap:.1e} (relative)")
    for name, size in (("lengths", "length"), ("windows", "window")):
        if name in result:
            _print_growth(name, size, result[name])


def _print_growth(name: str, size: str, table: Sequence[Mapping[str, Any]]) -> None:
    methods = [m for m in ("exact", "max-product", "ad3", "toulbar2") if m in table[0]]
    rows: list[list[object]] = []
    for entry in table:
        cells: list[object] = [entry[size], entry["feasible_states"]]
        for method in methods:
            told = number(1000 * entry[method])
            proved = method != "toulbar2" or entry["toulbar2_status"] == "optimal"
            cells.append(told if proved else f"> {told}")
        rows.append(cells)
    sizes = [float(entry[size]) for entry in table]
    exponents = [growth_exponent(sizes, [entry[m] for entry in table]) for m in methods]
    rows.append(["time ~ size^p, p =", "", *(f"{p:.2f}" for p in exponents)])
    if size == "window":
        states = [float(entry["feasible_states"]) for entry in table]
        exponents = [growth_exponent(states, [entry[m] for entry in table]) for m in methods]
        rows.append(["time ~ states^p, p =", "", *(f"{p:.2f}" for p in exponents)])
    show(f"Growth with the {size} (ms a model)", (size, "feasible states", *methods), rows)
