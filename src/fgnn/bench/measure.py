"""Time and memory of forward, and of forward and backward: wall time, and device time alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fgnn.bench.common import timed
from fgnn.nn.cuda_graph import recording


def measure(
    form: Callable[..., Tensor],
    inputs: list[Tensor],
    fixed: list[Tensor],
    repeats: int,
    *,
    parameters: Iterable[Tensor] = (),
    replay: bool = True,
) -> dict[str, Any]:
    """Median milliseconds and additional peak bytes of forward, and of forward and backward.

    ``forward_ms`` and ``both_ms`` are device times: on a GPU with ``replay``, those of a replayed CUDA graph, because
    otherwise Python's launches dominate small work. ``…_called_ms`` are wall times of plain calls.

    Args:
        form: A function of ``inputs`` and then ``fixed``.
        inputs: Tensors that need gradients.
        fixed: Tensors that need none.
        parameters: Parameters of the form; their gradients are reset each time, not accumulated.
    """
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    learned = [*leaves, *parameters]
    device = fixed[0].device if fixed else leaves[0].device

    def forward() -> Tensor:
        with half_precision(device):
            return form(*leaves, *fixed)

    upstream = torch.randn_like(forward())

    def both() -> None:
        torch.autograd.backward(forward(), upstream)
        for leaf in learned:
            leaf.grad = None

    row: dict[str, Any] = {}
    for name, work in (("forward", forward), ("both", both)):
        called, row[f"{name}_bytes"] = time_of(work, device, repeats)
        row[f"{name}_called_ms"] = called
        replayed = replay_time(work, repeats) if replay and device.type == "cuda" else None
        row[f"{name}_ms"] = called if replayed is None else replayed
        row[f"{name}_replayed"] = replayed is not None
    return row


def compare(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The other's time as a multiple of ours, by device time and by wall time."""
    return {
        "forward": other["forward_ms"] / mine["forward_ms"],
        "forward + backward": other["both_ms"] / mine["both_ms"],
        "forward, called": other["forward_called_ms"] / mine["forward_called_ms"],
        "forward + backward, called": other["both_called_ms"] / mine["both_called_ms"],
    }


def replay_time(work: Callable[[], Any], repeats: int) -> float | None:
    """Median milliseconds to replay one recorded call; None if it cannot be recorded."""
    side: Any = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        with recording(side) as graph:
            result = work()  # kept alive while it is replayed
    except RuntimeError:
        return None
    milliseconds, _ = time_of(graph.replay, torch.device("cuda"), repeats)
    del result
    return milliseconds


def half_precision(device: torch.device) -> torch.autocast:
    """bfloat16 autocast on a GPU, float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def time_of(work: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, int | None]:
    """Median milliseconds and additional peak bytes; on a GPU from events around back-to-back calls."""
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
