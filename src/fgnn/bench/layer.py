"""One layer against other implementations in the same run: time, memory, share of peak throughput, accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fgnn.bench.common import describe, mib, number, show, write_result
from fgnn.bench.measure import compare, half_precision, measure, time_of
from fgnn.bench.networks import point_network, small_graphs
from fgnn.bench.peers import PEERS, SAME_FUNCTION, Form, Problem, make_problem, ours, recorded
from fgnn.errors import MissingExtra
from fgnn.nn import use_backend
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Stages

# Minimum expected value of each figure.
CUDA_BARS = {
    "NNConv, forward": 15.0,
    "NNConv, forward + backward": 10.0,
    "NNConv, memory": 30.0,
    "best compiled, forward": 5.0,
    "best compiled, forward + backward": 5.0,
    "part of the matrix rate": 0.4,
    "small graphs, forward + backward": 5.0,
    "point network, forward + backward": 3.0,
}
CPU_BARS = {"NNConv, forward": 10.0, "authors, forward": 3.0}


def run(
    device: str = "cpu",
    seed: int = 0,
    out: str | None = None,
    *,
    sweep: bool = True,
    compile_peers: bool = True,
    repeats: int = 10,
    quiet: bool = False,
) -> dict[str, Any]:
    """Time the layer and its peers, print the tables and write them as JSON.

    On a GPU 8 clouds of 4,096 points under bfloat16 autocast, on a CPU one cloud in float32; k = 16, 64 → 64, 16 bases.

    Args:
        device: The device to measure.
        seed: Seed of points, features and parameters.
        out: Where to write the JSON; see `write_result`.
        sweep: Also measure four times the points, the neighbours and the width.
        compile_peers: Also measure the peers under ``torch.compile``, which takes most of the time.
        repeats: Number of timed calls; the median is reported.
        quiet: Print nothing.
    """
    cuda = torch.device(device).type == "cuda"
    result: dict[str, Any] = {"benchmark": "layer", "environment": environment(device), "seed": seed}
    with Stages("bench layer", total=1 + cuda + sweep, quiet=quiet) as stage:
        problem = make_problem(8 if cuda else 1, 4096, 16, 64, device=device, seed=seed)
        result["size"] = {"edges": problem.incidence.num_edges, "width": 64, "bases": 16, "k": 16}
        stage("the layer and its peers")
        result |= _table(problem, compile_peers and cuda, repeats)
        if cuda:
            stage("small graphs and the point network")
            result["machine"] = _rates(device)
            result["rate"] = _share(result, problem)
            result["small graphs"] = small_graphs(device, seed, repeats)
            result["point network"] = point_network(device, seed, repeats)
        if sweep:
            stage("larger sizes")
            result["sweep"] = _sweep(device, seed, repeats, cuda)
    result["expected"] = _expected(result, CUDA_BARS if cuda else CPU_BARS)
    if not quiet:
        _print(result)
    result["file"] = str(write_result(f"layer-{torch.device(device).type}", result, out))
    return result


def _table(problem: Problem, compile_peers: bool, repeats: int) -> dict[str, Any]:
    exact = _exact(problem)
    forms: dict[str, Callable[[Problem], Form]] = {"ours": ours, "ours, plain torch": ours, **PEERS}
    if problem.f.is_cuda:
        forms = {"ours": ours, "ours, recorded": recorded, **forms}
    rows: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name, make in forms.items():
        if "compiled" in name and not compile_peers:
            continue
        with use_backend("torch" if "plain" in name else None):
            try:
                # NNConv synchronises with the host and cannot be recorded; a recording already is
                replay = name not in ("NNConv", "ours, recorded")
                rows[name] = measure(
                    make(problem), [problem.f, problem.g], [problem.t], repeats,
                    parameters=problem.half.parameters(), replay=replay,
                )  # fmt: skip
            except (MissingExtra, RuntimeError) as error:
                if name == "ours":
                    raise
                skipped[name] = str(error).splitlines()[0]
                continue
            if name.startswith("ours") or name in SAME_FUNCTION:
                with torch.no_grad(), half_precision(problem.f.device):
                    values = make(problem)(problem.f, problem.g, problem.t).double()
                rows[name]["error"] = float((values - exact).norm() / exact.norm())
    mine = rows["ours"]
    ratios = {
        name: {**compare(mine, row), "memory": _ratio(row["both_bytes"], mine["both_bytes"])}
        for name, row in rows.items()
        if name != "ours"
    }
    return {"forms": rows, "ratios": ratios, "skipped": skipped}


def _exact(problem: Problem) -> Tensor:
    """The layer in float64 with the same parameters."""
    half = problem.half.double()
    with torch.no_grad(), use_backend("torch"):
        values: Tensor = half(problem.incidence, problem.f.double(), problem.g.double(), problem.t.double())
    half.float()
    return values


def _ratio(theirs: int | None, mine: int | None) -> float | None:
    return None if theirs is None or not mine else theirs / mine


# ---- the machine, other sizes, other structures ----------------------------------------------------------------


def _rates(device: str) -> dict[str, float]:
    """Measured TFLOP/s of a large bfloat16 product and TB/s of a large copy."""
    where = torch.device(device)
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    product, _ = time_of(lambda: x @ x, where, 5)
    a = torch.empty(1 << 30, dtype=torch.int8, device=device)
    b = torch.empty_like(a)
    copy, _ = time_of(lambda: b.copy_(a), where, 5)
    return {"tflops": 2 * 8192**3 / product / 1e9, "tbytes": 2 * (1 << 30) / copy / 1e9}


def _share(result: dict[str, Any], problem: Problem) -> dict[str, float]:
    """The share of the matrix throughput that the layer reaches; backward has twice the operations of forward."""
    matrix = problem.matrix
    work = 2 * problem.incidence.num_edges * matrix.terms * matrix.rows * matrix.columns
    rate = result["machine"]["tflops"]
    mine = result["forms"]["ours"]
    return {
        "forward": work / mine["forward_ms"] / 1e9 / rate,
        "forward + backward": 3 * work / mine["both_ms"] / 1e9 / rate,
    }


def _expected(result: dict[str, Any], bars: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Each expected minimum beside the measured value."""
    ratios = result["ratios"]
    measured: dict[str, float] = {
        f"{name}, {what}": row[what]
        for name, row in ratios.items()
        for what in ("forward", "forward + backward", "memory")
        if row[what] is not None
    }
    compiled = [row for name, row in ratios.items() if "compiled" in name]
    for what in ("forward", "forward + backward") if compiled else ():
        measured[f"best compiled, {what}"] = min(row[what] for row in compiled)
    if "rate" in result:
        measured["part of the matrix rate"] = min(result["rate"].values())
        measured["small graphs, forward + backward"] = min(
            row["forward + backward"] for row in result["small graphs"].values()
        )
        measured["point network, forward + backward"] = result["point network"]["forward + backward"]
    return {
        name: {"expected": bar, "found": measured[name], "met": measured[name] >= bar}
        for name, bar in bars.items()
        if name in measured
    }


def _sweep(device: str, seed: int, repeats: int, cuda: bool) -> dict[str, dict[str, Any]]:
    """Growth of the time relative to E·m·n, for four times the points, the neighbours and the width."""
    clouds, points, k, width = (8, 4096, 16, 64) if cuda else (1, 1024, 16, 32)
    rows: dict[str, dict[str, Any]] = {}
    sizes = {
        "base": (clouds, points, k, width),
        "points x4": (clouds, 4 * points, k, width),
        "k x4": (clouds, points, 4 * k, width),
        "width x4": (clouds, points, k, 4 * width),
    }
    for name, size in sizes.items():
        problem = make_problem(*size, device=device, seed=seed)
        row = measure(ours(problem), [problem.f, problem.g], [problem.t], repeats, parameters=problem.half.parameters())
        row["work"] = problem.incidence.num_edges * size[3] ** 2
        if name != "base":
            base = rows["base"]
            growth = row["work"] / base["work"]
            row["forward, of linear"] = row["forward_ms"] / base["forward_ms"] / growth
            row["forward + backward, of linear"] = row["both_ms"] / base["both_ms"] / growth
        rows[name] = row
    return rows


# ---- tables ---------------------------------------------------------------------------------------------------


def _print(result: dict[str, Any]) -> None:
    print(describe(result["environment"]))
    rows = [
        (
            name, number(row["forward_ms"]), number(row["forward_called_ms"]), mib(row["forward_bytes"]),
            number(row["both_ms"]), number(row["both_called_ms"]), mib(row["both_bytes"]),
            number(result["ratios"][name]["forward"]) if name != "ours" else None,
            number(result["ratios"][name]["forward + backward"]) if name != "ours" else None,
            f"{row['error']:.1e}" if "error" in row else None,
        )
        for name, row in result["forms"].items()
    ]  # fmt: skip
    columns = (
        "form", "forward ms", "wall ms", "peak + MiB", "both ms", "wall ms", "peak + MiB", "x ours", "both x ours",
        "error",
    )  # fmt: skip
    show(f"One layer, {result['size']['edges']:,} edges, 64 to 64, 16 bases", columns, rows)
    for name, why in result["skipped"].items():
        print(f"{name}: {why}")
    if "rate" in result:
        print(
            f"share of the matrix throughput ({result['machine']['tflops']:.0f} TFLOP/s): "
            f"forward {result['rate']['forward']:.0%}, forward + backward {result['rate']['forward + backward']:.0%}"
        )
    networks = {f"4,096 chain models, {q}": row for q, row in result.get("small graphs", {}).items()}
    if "point network" in result:
        networks["the point network on 8 x 4,096 points"] = result["point network"]
    for title, row in networks.items():
        print(
            f"{title}: forward x{row['forward']:.1f}, forward + backward x{row['forward + backward']:.1f} "
            f"of plain torch ({row['ours']['both_ms']:.2f} ms); wall time x{row['forward + backward, called']:.1f} "
            f"({row['ours']['both_called_ms']:.2f} ms)"
        )
    if "sweep" in result:
        table = [
            (name, number(row["forward_ms"]), number(row["both_ms"]), number(row.get("forward, of linear")),
             number(row.get("forward + backward, of linear")))
            for name, row in result["sweep"].items()
        ]  # fmt: skip
        show("Growth relative to E m n (1: linear)", ("size", "forward ms", "both ms", "forward", "both"), table)
    checks = [
        (name, number(row["expected"]), number(row["found"]), "yes" if row["met"] else "no")
        for name, row in result["expected"].items()
    ]
    show("Expected minimum", ("figure", "expected", "measured", "met"), checks)
