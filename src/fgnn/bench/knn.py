"""k nearest neighbours against other implementations in the same run; every answer is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fgnn.bench.common import describe, mib, number, show, timed, write_result
from fgnn.points import knn
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Stages

_LARGE = 1_000_000


def run(
    device: str = "cpu", seed: int = 0, out: str | None = None, *, large: int | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Time k = 16 on 8 clouds of 4,096 points and on one large cloud, print the table and write it as JSON.

    Args:
        device: Device of ours and of the matrix form; trees always run on the CPU.
        seed: Seed of the points.
        out: Where to write the JSON; see `write_result`.
        large: Points in the large cloud; by default a million on a GPU, 100,000 on a CPU.
        quiet: Print nothing.
    """
    make = torch.Generator().manual_seed(seed)
    cuda = torch.device(device).type == "cuda"
    large = large if large is not None else _LARGE if cuda else 100_000
    clouds = torch.rand(8, 4096, 3, generator=make)
    cube = torch.rand(1, large, 3, generator=make)
    sphere = torch.nn.functional.normalize(torch.randn(1, large, 3, generator=make), dim=2)
    result: dict[str, Any] = {"benchmark": "knn", "environment": environment(device), "seed": seed, "k": 16}
    sets = {"8 x 4,096": clouds, f"1 x {large:,}, cube": cube, f"1 x {large:,}, sphere": sphere}
    with Stages("bench knn", total=len(sets), quiet=quiet) as stage:
        for name, points in sets.items():
            stage(name)
            result[name] = _compare(points, device, matrix=points is clouds)
    if not quiet:
        _print(result)
    result["file"] = str(write_result(f"knn-{torch.device(device).type}", result, out))
    return result


def _compare(points: Tensor, device: str, matrix: bool) -> dict[str, Any]:
    where = torch.device(device)
    moved = points.to(where)
    work: dict[str, tuple[Callable[[], Any], torch.device]] = {"ours": (lambda: knn(moved, 16), where)}
    if matrix:
        work["cdist + topk"] = (lambda: torch.cdist(moved, moved).topk(16, largest=False), where)
    work["SciPy's tree"] = (lambda: _scipy(points), torch.device("cpu"))
    rows: dict[str, Any] = {}
    for name, (call, place) in work.items():
        repeats, warmup = (10, 2) if place.type == "cuda" else (3, 1) if matrix else (1, 0)
        taken = timed(call, repeats=repeats, warmup=warmup, device=place)
        rows[name] = {"ms": 1000 * taken.median, "extra_bytes": taken.peak_bytes}
    index, squared = (x.cpu() for x in knn(moved, 16))
    rows["ours"]["exact"] = _exact(points, index, squared)
    for row in rows.values():
        row["x ours"] = row["ms"] / rows["ours"]["ms"]
    return rows


def _scipy(points: Tensor) -> list[Any]:
    from scipy.spatial import cKDTree

    return [cKDTree(cloud).query(cloud, k=16, workers=-1) for cloud in points.numpy()]


def _exact(points: Tensor, index: Tensor, squared: Tensor) -> bool:
    """Whether distances match a float64 tree up to float32 rounding, and the indices give those distances."""
    for cloud, near, reported, (distance, _) in zip(points, index, squared, _scipy(points), strict=True):
        expected = torch.from_numpy(distance).square()
        of_index = (cloud[:, None].double() - cloud[near].double()).square().sum(2)
        for values in (reported.double(), of_index):
            if not torch.allclose(values, expected, rtol=1e-5, atol=1e-12):
                return False
    return True


def _print(result: dict[str, Any]) -> None:
    print(describe(result["environment"]))
    for title, rows in result.items():
        if not isinstance(rows, dict) or "ours" not in rows:
            continue
        table = [
            (name, number(row["ms"]), number(row["x ours"]), mib(row["extra_bytes"])) for name, row in rows.items()
        ]
        show(
            f"k = 16, {title} points; ours is {'exact' if rows['ours']['exact'] else 'not exact'}",
            ("way", "ms", "x ours", "+ MiB"),
            table,
        )
