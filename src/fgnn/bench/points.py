"""The point networks side by side: training steps and inference on the same clouds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.bench.common import describe, mib, number, show, timed, write_result
from fgnn.data.labelled import PointSet
from fgnn.models import PointConfig, PointNetwork
from fgnn.nn import use_backend
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Stages
from fgnn.tasks import Loss, read_recipe
from fgnn.train.step import Step
from fgnn.train.update import Update

PARTS, CATEGORIES = 50, 16
# By name: the network, and the backend of its layers (None: chosen automatically).
NETWORKS: dict[str, tuple[PointConfig, str | None]] = {
    "fgnn": (PointConfig(), None),
    "fgnn, 8 bases": (PointConfig(bases=8), None),
    "fgnn, plain torch": (PointConfig(), "torch"),
    "pointnet": (PointConfig("pointnet"), None),
    "dgcnn": (PointConfig("dgcnn", k=20), None),
    "pointcnn": (PointConfig("pointcnn"), None),
}


def run(
    device: str = "cpu",
    seed: int = 0,
    out: str | Path | None = None,
    *,
    networks: Sequence[str] = tuple(NETWORKS),
    clouds: int | None = None,
    points: int = 2048,
    repeats: int = 10,
) -> dict[str, Any]:
    """Shapes per second in training and inference, and peak memory of a step, for each network on the same clouds.

    A training step is forward, backward, clipping and AdamW; on a GPU in bfloat16 and as a CUDA graph if possible.

    Args:
        clouds: Batch size; by default 32 on a GPU and 2 elsewhere.
    """
    here = torch.device(device)
    size = clouds or (32 if here.type == "cuda" else 2)
    head = environment(here)
    batch = _clouds(size, points, seed, here)
    rows: dict[str, dict[str, Any]] = {}
    with Stages("bench points", total=len(networks)) as stage:
        for name in networks:
            stage(name)
            config, backend = NETWORKS[name]
            with use_backend(backend):
                rows[name] = _measure(config, batch, here, repeats, seed)
            if here.type == "cuda":
                torch.cuda.empty_cache()
    first = rows[networks[0]]
    columns = (
        "", "parameters", "training, shapes/s", "ms per step", "peak memory, MiB", "inference, shapes/s", "CUDA graph",
        "time",
    )  # fmt: skip
    table = [
        (
            name, f"{row['parameters']:,}", number(size / row["step_ms"] * 1e3), number(row["step_ms"]),
            mib(row["step_bytes"]), number(size / row["use_ms"] * 1e3), "yes" if row["replayed"] else "no",
            f"{row['step_ms'] / first['step_ms']:.2f}×",
        )
        for name, row in rows.items()
    ]  # fmt: skip
    show(f"point networks, batches of {size} clouds of {points} points; {describe(head)}", columns, table)
    payload = {
        "benchmark": "points", "environment": head, "seed": seed, "clouds": size, "points": points,
        "precision": "bf16" if here.type == "cuda" else "fp32", "networks": rows,
    }  # fmt: skip
    return {**payload, "file": str(write_result(f"points-{here.type}", payload, out))}


def _clouds(size: int, points: int, seed: int, device: torch.device) -> PointSet:
    """Points on spheres of random radii, in a spatially coherent order like stored scans and shapes."""
    generator = torch.Generator().manual_seed(seed)
    xyz = torch.randn(size, points, 3, generator=generator)
    xyz = xyz / xyz.norm(dim=2, keepdim=True) * (0.3 + 0.7 * torch.rand(size, 1, 1, generator=generator))
    cell = ((xyz + 1) * 4).long()
    order = (cell[..., 0] * 64 + cell[..., 1] * 8 + cell[..., 2]).argsort(1)
    xyz = xyz.gather(1, order[..., None].expand(-1, -1, 3))
    label = torch.randint(0, PARTS, (size, points), generator=generator, dtype=torch.int16)
    kind = torch.randint(0, CATEGORIES, (size,), generator=generator)
    return PointSet(xyz, label, kind).to(device)


def _measure(config: PointConfig, batch: PointSet, device: torch.device, repeats: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    recipe = replace(read_recipe("shapes-fgnn"), points=config, ema=None)
    network = PointNetwork(config, 3, PARTS, CATEGORIES).to(device).train()
    half = device.type == "cuda"
    update = Update(recipe, network, None, device)

    def loss(batch: PointSet) -> Loss:
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            scores, more = network(batch.features, batch.category)
            target = batch.label.long().flatten()
            rows = scores.flatten(0, 1).float()
            entropy = nn.functional.cross_entropy(rows, target, label_smoothing=recipe.label_smoothing)
            return Loss(entropy + more, (rows.detach().argmax(-1) == target).float().mean())

    step = Step(network, loss, after=update, capture=half, log=print)

    def whole() -> Tensor:
        update.prepare(0, recipe.optimiser.rate)
        return step(batch).loss

    train = timed(whole, repeats=repeats, warmup=6 if half else 1, device=device)
    network.eval()

    def use() -> Tensor:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            scores: Tensor = network(batch.features, batch.category)[0]
            return scores

    inference = timed(use, repeats=repeats, warmup=2 if half else 1, device=device)
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "step_ms": 1e3 * train.median,
        "step_bytes": train.peak_bytes,
        "use_ms": 1e3 * inference.median,
        "use_bytes": inference.peak_bytes,
        "replayed": step.captured,
        "loss": float(train.result),
    }
