"""One layer against the other ways to write it, in one run: time, memory, the part of the machine's rate, exactness."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fgnn.bench.common import describe, environment, number, show, timed, write_result
from fgnn.bench.peers import PEERS, SAME_FUNCTION, Form, Problem, make_problem, ours
from fgnn.errors import MissingExtra
from fgnn.nn import use_backend

# What is expected at least: forward, forward + backward, and of extra memory at most.
CUDA_BARS = {"NNConv": (15.0, 10.0, 1 / 30), "outer, compiled": (5.0, 5.0, None), "rate": 0.4, "small graphs": 5.0}
CPU_BARS = {"NNConv": (5.0, None, None), "authors": (2.0, None, None), "extra MiB": 120.0}


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
    """Time the layer and its peers, print the tables, and keep them as JSON.

    On a GPU 8 clouds of 4,096 points under bfloat16 autocast, on a CPU one cloud in float32; k = 16, 64 → 64, 16 bases.

    Args:
        device: Where.
        seed: Of points, features and parameters.
        out: Where to write the JSON; see `write_result`.
        sweep: Also four times the points, the neighbours and the width.
        compile_peers: Also the peers under ``torch.compile``, which takes most of the time.
        repeats: Calls timed; the median counts.
        quiet: Print nothing.
    """
    cuda = torch.device(device).type == "cuda"
    result: dict[str, Any] = {"benchmark": "layer", "environment": environment(device), "seed": seed}
    problem = make_problem(8 if cuda else 1, 4096, 16, 64, device=device, seed=seed)
    result["size"] = {"edges": problem.incidence.num_edges, "width": 64, "bases": 16, "k": 16}
    result |= _table(problem, compile_peers and cuda, repeats)
    if cuda:
        result["machine"] = _rates(device)
        result["rate"] = _share(result, problem)
        result["small graphs"] = _small_graphs(device, seed, repeats)
    if sweep:
        result["sweep"] = _sweep(device, seed, repeats, cuda)
    if not quiet:
        _print(result)
    result["file"] = str(write_result(f"layer-{torch.device(device).type}", result, out))
    return result


def _table(problem: Problem, compile_peers: bool, repeats: int) -> dict[str, Any]:
    exact = _exact(problem)
    forms: dict[str, Callable[[Problem], Form]] = {"ours": ours, "ours, plain torch": ours, **PEERS}
    rows: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name, make in forms.items():
        if "compiled" in name and not compile_peers:
            continue
        with use_backend("torch" if "plain" in name else None):
            try:
                replay = name != "NNConv"  # it asks the device how many edges there are, and cannot be captured
                rows[name] = measure(make(problem), problem.f, problem.g, problem.t, repeats, replay=replay)
            except MissingExtra as error:
                skipped[name] = str(error)
                continue
            if name.startswith("ours") or name in SAME_FUNCTION:
                with torch.no_grad(), _precision(problem.f.device):
                    found = make(problem)(problem.f, problem.g, problem.t).double()
                rows[name]["error"] = float((found - exact).norm() / exact.norm())
    ratios = {
        name: {
            "forward": row["forward_ms"] / rows["ours"]["forward_ms"],
            "forward + backward": row["both_ms"] / rows["ours"]["both_ms"],
            "memory": _ratio(row["both_bytes"], rows["ours"]["both_bytes"]),
        }
        for name, row in rows.items()
        if name != "ours"
    }
    return {"forms": rows, "ratios": ratios, "skipped": skipped}


def _exact(problem: Problem) -> Tensor:
    """The layer in float64, on the parameters as they are."""
    half = problem.half.double()
    with torch.no_grad(), use_backend("torch"):
        found: Tensor = half(problem.incidence, problem.f.double(), problem.g.double(), problem.t.double())
    half.float()
    return found


def measure(form: Form, f: Tensor, g: Tensor, t: Tensor, repeats: int, *, replay: bool = True) -> dict[str, Any]:
    """Median milliseconds and extra bytes of forward, and of forward and backward to features and parameters.

    ``forward_ms`` and ``both_ms`` are the device's time: on a GPU replays of a captured graph where ``replay`` is set,
    for else small work is timed by how fast Python calls it. ``…_called_ms`` are the calls as they are.
    """
    leaves = [x.detach().clone().requires_grad_() for x in (f, g)]

    def forward() -> Tensor:
        with _precision(f.device):
            return form(leaves[0], leaves[1], t)

    upstream = torch.randn_like(forward())

    def both() -> None:
        forward().backward(upstream)  # type: ignore[no-untyped-call]
        for leaf in leaves:
            leaf.grad = None

    row: dict[str, Any] = {}
    for name, work in (("forward", forward), ("both", both)):
        called, row[f"{name}_bytes"] = _time(work, f.device, repeats)
        row[f"{name}_called_ms"] = called
        replayed = _replayed(work, repeats) if replay and f.device.type == "cuda" else None
        row[f"{name}_ms"] = called if replayed is None else replayed
        row[f"{name}_replayed"] = replayed is not None
    return row


def _replayed(work: Callable[[], Any], repeats: int) -> float | None:
    """Median milliseconds of replays of one captured call; None where it cannot be captured."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            kept = work()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    taken, _ = _time(graph.replay, torch.device("cuda"), repeats)
    del kept
    return taken


def _precision(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _time(work: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, int | None]:
    """Median milliseconds and bytes on top; on a GPU by events around calls that follow each other at once."""
    if device.type != "cuda":
        taken = timed(work, repeats=repeats, warmup=2, device=device)
        return 1000 * taken.median, taken.peak_bytes
    for _ in range(3):
        work()
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - held
    event: Any = torch.cuda.Event
    marks = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize(device)
    return median(begin.elapsed_time(end) for begin, end in marks), peak


def _ratio(theirs: int | None, mine: int | None) -> float | None:
    return None if theirs is None or not mine else theirs / mine


# ---- the machine, other sizes, other structures ----------------------------------------------------------------


def _rates(device: str) -> dict[str, float]:
    """TFLOP/s of a large bfloat16 product and TB/s of a large copy, measured now."""
    where = torch.device(device)
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    product, _ = _time(lambda: x @ x, where, 5)
    a = torch.empty(1 << 30, dtype=torch.int8, device=device)
    b = torch.empty_like(a)
    copy, _ = _time(lambda: b.copy_(a), where, 5)
    return {"tflops": 2 * 8192**3 / product / 1e9, "tbytes": 2 * (1 << 30) / copy / 1e9}


def _share(result: dict[str, Any], problem: Problem) -> dict[str, float]:
    """The part of the matrix rate that the layer's products reach; backward has twice forward's operations."""
    matrix = problem.matrix
    work = 2 * problem.incidence.num_edges * matrix.terms * matrix.rows * matrix.columns
    rate = result["machine"]["tflops"]
    mine = result["forms"]["ours"]
    return {
        "forward": work / mine["forward_ms"] / 1e9 / rate,
        "forward + backward": 3 * work / mine["both_ms"] / 1e9 / rate,
    }


def _small_graphs(device: str, seed: int, repeats: int) -> dict[str, Any]:
    """A layer on many chain models of one structure, windows of 8 and pairs, against its plain torch path."""
    import fgnn

    torch.manual_seed(seed)
    batch = 4096
    windows, pairs = [list(range(i, i + 8)) for i in range(23)], [[i, i + 1] for i in range(29)]
    groups = {"window": fgnn.FactorGroup(torch.tensor(windows)), "pair": fgnn.FactorGroup(torch.tensor(pairs))}
    graph = fgnn.FactorGraph(30, groups).to(device)
    rows = {}
    for q in ("table", "basis"):
        layer = fgnn.nn.FGNNLayer(
            variable_in=64, factor_in={"window": 64, "pair": 64}, edge_in={"window": 8, "pair": 2}, out=64, q=q
        ).to(device)
        gs = {name: torch.randn(batch, n, 64, device=device) for name, n in (("window", 23), ("pair", 29))}
        edges = {name: torch.eye(n, device=device) for name, n in (("window", 8), ("pair", 2))}  # the place, one-hot
        f = torch.randn(batch, 30, 64, device=device)

        def form(f: Tensor, g: Tensor, t: Tensor, layer: Any = layer, gs: Any = gs, edges: Any = edges) -> Tensor:
            made, _ = layer(graph, f, gs, edges)
            return made  # type: ignore[no-any-return]

        mine = measure(form, f, f, f, repeats)
        with use_backend("torch"):
            plain = measure(form, f, f, f, repeats)
        rows[q] = {
            "ours": mine,
            "plain torch": plain,
            "forward": plain["forward_ms"] / mine["forward_ms"],
            "forward + backward": plain["both_ms"] / mine["both_ms"],
        }
    return rows


def _sweep(device: str, seed: int, repeats: int, cuda: bool) -> dict[str, dict[str, Any]]:
    """How time grows against E·m·n, for four times the points, the neighbours and the width."""
    clouds, points, k, width = (8, 4096, 16, 64) if cuda else (1, 1024, 16, 32)
    found: dict[str, dict[str, Any]] = {}
    sizes = {
        "base": (clouds, points, k, width),
        "points x4": (clouds, 4 * points, k, width),
        "k x4": (clouds, points, 4 * k, width),
        "width x4": (clouds, points, k, 4 * width),
    }
    for name, size in sizes.items():
        problem = make_problem(*size, device=device, seed=seed)
        row = measure(ours(problem), problem.f, problem.g, problem.t, repeats)
        row["work"] = problem.incidence.num_edges * size[3] ** 2
        if name != "base":
            base = found["base"]
            growth = row["work"] / base["work"]
            row["forward, of linear"] = row["forward_ms"] / base["forward_ms"] / growth
            row["forward + backward, of linear"] = row["both_ms"] / base["both_ms"] / growth
        found[name] = row
    return found


# ---- tables ---------------------------------------------------------------------------------------------------


def _print(result: dict[str, Any]) -> None:
    print(describe(result["environment"]))
    rows = [
        (
            name, number(row["forward_ms"]), number(row["forward_called_ms"]), _mib(row["forward_bytes"]),
            number(row["both_ms"]), number(row["both_called_ms"]), _mib(row["both_bytes"]),
            number(result["ratios"][name]["forward"]) if name != "ours" else None,
            number(result["ratios"][name]["forward + backward"]) if name != "ours" else None,
            f"{row['error']:.1e}" if "error" in row else None,
        )
        for name, row in result["forms"].items()
    ]  # fmt: skip
    columns = (
        "form", "forward ms", "called", "+ MiB", "both ms", "called", "+ MiB", "x ours", "both x ours", "error",
    )  # fmt: skip
    show(f"One layer, {result['size']['edges']:,} edges, 64 to 64, 16 bases", columns, rows)
    for name, why in result["skipped"].items():
        print(f"{name}: {why}")
    if "rate" in result:
        print(
            f"part of the matrix rate ({result['machine']['tflops']:.0f} TFLOP/s): "
            f"forward {result['rate']['forward']:.0%}, forward + backward {result['rate']['forward + backward']:.0%}"
        )
    for q, row in result.get("small graphs", {}).items():
        print(
            f"4,096 chain models, {q}: forward x{row['forward']:.1f}, forward + backward "
            f"x{row['forward + backward']:.1f} of plain torch ({row['ours']['both_ms']:.2f} ms)"
        )
    if "sweep" in result:
        table = [
            (name, number(row["forward_ms"]), number(row["both_ms"]), number(row.get("forward, of linear")),
             number(row.get("forward + backward, of linear")))
            for name, row in result["sweep"].items()
        ]  # fmt: skip
        show("Growth against E m n (1: linear)", ("size", "forward ms", "both ms", "forward", "both"), table)


def _mib(size: int | None) -> str | None:
    return None if size is None else number(size / 2**20)
