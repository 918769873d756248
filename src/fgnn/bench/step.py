"""A training step in a loop of one's own: eager, recorded and compiled, as called and on the device."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.bench.common import number, show, write_result
from fgnn.bench.measure import half_precision
from fgnn.graph import FactorGraph, FactorGroup
from fgnn.models.map.network import PAPER
from fgnn.nn import build, record
from fgnn.runtime.devices import pick_device, synchronised_time
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Stages

_LENGTH, _WINDOW = 30, 8  # the paper's chains
_ONE_THREAD = "eager, one thread"  # without torch's thread for backward
Step = Callable[[], Tensor]


def run(
    device: str = "cpu",
    batches: tuple[int, ...] = (1024, 16384),
    compiled: bool = True,
    seed: int = 0,
    out: str | None = None,
    *,
    notation: str = PAPER,
    points: int = 4096,
    repeats: int = 10,
    quiet: bool = False,
) -> dict[str, Any]:
    """Time whole steps: forward, loss, backward and Adam; bfloat16 autocast and the fused Adam on a GPU, float32 on
    a CPU.

    Args:
        batches: Chains in a batch of the paper's MAP network. The compiled network sees each of them in turn.
        compiled: Also with ``torch.compile(network, fullgraph=True, dynamic=True)``, whose start is timed.
        points: Points in each of the 8 clouds of the paper's point network; 0 leaves it out.
    """
    here = pick_device(device)
    rows: dict[str, dict[str, Any]] = {}
    with Stages("bench step", quiet=quiet) as stage:
        forms = ("eager", _ONE_THREAD, "recorded") if here.type == "cuda" else ("eager",)
        for batch, form in product(batches, forms):
            stage(f"{batch:,} chains, {form}")
            with torch.autograd.set_multithreading_enabled(form != _ONE_THREAD):
                row = _measure(_chains(notation, batch, here, seed, form), here, repeats)
            rows[f"MAP, {batch:,} chains, {form}"] = row
        for form in forms if points else ():
            stage(f"8 clouds of {points:,} points, {form}")
            with torch.autograd.set_multithreading_enabled(form != _ONE_THREAD):
                row = _measure(_points(points, here, seed, form), here, repeats)
            rows[f"points, 8 x {points:,}, {form}"] = row
        result: dict[str, Any] = {"benchmark": "step", "environment": environment(here), "seed": seed, "steps": rows}
        if compiled:
            stage("torch.compile")
            result["compile"] = _compile(notation, batches, here, seed, repeats)
            rows |= {f"MAP, {batch:,} chains, compiled": row for batch, row in result["compile"].pop("steps").items()}
    if not quiet:
        head = ("step", "called ms", "in a loop", "device ms", "launches", "first s")
        cells = [
            (name, *(number(row[key]) for key in ("called_ms", "loop_ms", "device_ms", "launches", "first_s")))
            for name, row in rows.items()
        ]
        show("Training steps as called", head, cells)
    return result | {"file": str(write_result(f"step-{here.type}", result, out))}


def _network(notation: str, device: torch.device, seed: int) -> tuple[nn.Module, FactorGraph, dict[str, Tensor]]:
    """The network of the paper's chains, their graph and edge features: positions one-hot."""
    torch.manual_seed(seed)
    pairs = torch.tensor([[i, i + 1] for i in range(_LENGTH - 1)])
    windows = torch.tensor([list(range(i, i + _WINDOW)) for i in range(_LENGTH - _WINDOW + 1)])
    graph = FactorGraph(_LENGTH, {"pair": FactorGroup(pairs), "budget": FactorGroup(windows)}).to(device)
    sizes = {"pair": 2, "budget": _WINDOW}
    network = build(notation, variable_in=2, factor_in={"pair": 4, "budget": 1}, edge_in=sizes, num_classes=2).to(
        device
    )
    return network, graph, {name: torch.eye(size, device=device) for name, size in sizes.items()}


def _chains(notation: str, batch: int, device: torch.device, seed: int, form: str) -> Step:
    network, graph, edges = _network(notation, device, seed)
    if form == "recorded":
        record(network)
    return _chain_step(network, graph, edges, batch)


def _chain_step(network: Any, graph: FactorGraph, edges: dict[str, Tensor], batch: int) -> Step:
    device = edges["pair"].device
    f = torch.randn(batch, _LENGTH, 2, device=device)
    g = {name: torch.randn(batch, n, d, device=device) for name, n, d in (("pair", 29, 4), ("budget", 23, 1))}
    labels = torch.randint(2, (batch * _LENGTH,), device=device)

    def loss() -> Tensor:
        with half_precision(device):
            scores = network(graph, f, g, edges)
        return nn.functional.cross_entropy(scores.float().flatten(0, 1), labels)

    return _step(network, loss)


def _points(count: int, device: torch.device, seed: int, form: str) -> Step:
    from fgnn.models.points.fgnn import PointFGNN

    torch.manual_seed(seed)
    network = PointFGNN(inputs=9, classes=13).to(device)
    if form == "recorded":
        record(network)
    x = torch.rand(8, count, 9, device=device)
    labels = torch.randint(13, (8 * count,), device=device)

    def loss() -> Tensor:
        with half_precision(device):
            scores = network(x)
        return nn.functional.cross_entropy(scores.float().flatten(0, 1), labels)

    return _step(network, loss)


def _step(network: Any, loss: Callable[[], Tensor]) -> Step:
    parameters = list(network.parameters())
    optimiser = torch.optim.Adam(parameters, lr=1e-3, fused=parameters[0].is_cuda)

    def step() -> Tensor:
        value = loss()
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        return value.detach()

    return step


def _compile(notation: str, batches: tuple[int, ...], device: torch.device, seed: int, repeats: int) -> dict[str, Any]:
    """Seconds of the first step through ``torch.compile``, then steps of every size, and how many graphs it took."""
    from torch._dynamo.utils import counters

    counters.clear()
    network, graph, edges = _network(notation, device, seed)
    fast = torch.compile(network, fullgraph=True, dynamic=True)
    start = synchronised_time(device)
    _chain_step(fast, graph, edges, batches[0])()
    seconds = synchronised_time(device) - start
    steps = {batch: _measure(_chain_step(fast, graph, edges, batch), device, repeats) for batch in batches}
    return {"start_s": seconds, "graphs": counters["stats"]["unique_graphs"], "steps": steps}


def _measure(step: Step, device: torch.device, repeats: int) -> dict[str, float | None]:
    """Median milliseconds of a step as called, with a wait at its end; of one in a loop that waits at its end alone.

    On a GPU also those of its kernels alone, and how often it launches.
    """
    start = synchronised_time(device)
    step()
    row: dict[str, float | None] = {"first_s": synchronised_time(device) - start}
    times = []
    for _ in range(4 + repeats):
        start = synchronised_time(device)
        step()
        times.append(1e3 * (synchronised_time(device) - start))
    row["called_ms"] = median(times[4:])
    start = synchronised_time(device)
    for _ in range(repeats):
        step()
    row["loop_ms"] = 1e3 * (synchronised_time(device) - start) / repeats
    row["device_ms"], row["launches"] = _on_device(step, device) if device.type == "cuda" else (None, None)
    return row


def _on_device(step: Step, device: torch.device) -> tuple[float, int]:
    """Milliseconds of all kernels of a step, and the calls that launched them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        step()
        synchronised_time(device)
    events = list(profiler.events() or ())
    # A range such as that of the optimiser's step covers kernels that are counted by themselves.
    kernels = [e for e in events if "CUDA" in str(e.device_type) and not e.is_user_annotation]
    launches = sum(e.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")) for e in events)
    return sum(e.self_device_time_total for e in kernels) / 1e3, launches
