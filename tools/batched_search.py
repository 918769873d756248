"""Many spin glasses searched at once on a GPU, beside one at a time on a CPU.

`python -m tools.batched_search cpu` stores how good the first grids get with time. `… cuda` then searches all at once,
and stores the seconds it takes to be as good on those. Both add to the same file.
"""

from __future__ import annotations

import json
import time
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import fgnn
from fgnn.bench.anytime.families import glass
from fgnn.bench.common import RESULTS
from fgnn.errors import InputError
from fgnn.files import atomic_write
from fgnn.infer import Progress
from fgnn.pgm import ModelBatch
from fgnn.runtime.devices import pick_device
from fgnn.runtime.environment import environment

_WARM_UP = 120  # rounds, enough for every kind of step
_MARKS = (1.0, 2.0, 5.0, 10.0, 20.0)  # seconds of the CPU on one grid


def search_one_by_one(side: int, grids: int, seconds: float) -> dict[str, Any]:
    """The mean score of the first grids at each mark, with every core on one grid at a time."""
    marks = [m for m in _MARKS if m <= seconds]
    scores = []
    for seed in range(grids):
        curve: list[tuple[float, float]] = []
        start = time.perf_counter()

        def note(update: Progress, curve: list[tuple[float, float]] = curve, start: float = start) -> None:
            curve.append((time.perf_counter() - start, update.score))

        last = fgnn.solve(glass(side, seed), "search", time_limit=seconds, progress=note)
        curve.append((seconds, last.score))
        scores.append([max((s for t, s in curve if t <= m), default=-torch.inf) for m in marks])
    means = [sum(column) / grids for column in zip(*scores, strict=True)]
    return {"grids": grids, "seconds": marks, "mean": means, "threads": torch.get_num_threads()}


def search_all(
    side: int, count: int, seconds: float, device: torch.device, reference: dict[str, Any]
) -> dict[str, Any]:
    """Search ``count`` grids at once; return the seconds until the first are as good as the reference at its marks."""
    # compile kernels and loops, on grids of another size
    warm = ModelBatch.stack([glass(side - 1, seed) for seed in range(2)]).to(device)
    fgnn.solve(warm, "search", rounds=_WARM_UP, batched=True)
    batch = ModelBatch.stack([glass(side, seed) for seed in range(count)]).to(device)
    first = batch.select(slice(0, reference["grids"]))
    curve: list[tuple[float, float, float]] = []
    start = time.perf_counter()

    def note(update: Progress) -> None:
        if update.assignment is not None:
            best = first.score(update.assignment[: len(first)]).mean().item()
            curve.append((time.perf_counter() - start, best, batch.score(update.assignment).mean().item()))

    last = fgnn.solve(batch, "search", time_limit=seconds, batched=True, progress=note)
    curve.append((last.seconds, last.score[: len(first)].mean().item(), last.score.mean().item()))
    best = list(accumulate((score for _, score, _ in curve), max))
    rows = []
    for mark, mean in zip(reference["seconds"], reference["mean"], strict=True):
        enough = mean - 1e-9 * abs(mean)  # the same assignment's score may differ in the last digit
        reached = next((t for (t, _, _), score in zip(curve, best, strict=True) if score >= enough), None)
        ratio = None if reached is None else count * mark / reached
        rows.append({"cpu_s": mark, "mean": mean, "reached_s": reached, "ratio": ratio})
    points = [{"seconds": t, "first": first, "mean": mean} for t, first, mean in curve]
    return {"count": count, "seconds": last.seconds, "mean": curve[-1][2], "rows": rows, "curve": points}


def main(
    device: str,
    side: int = 50,
    grids: Annotated[int, typer.Option(help="Grids searched one by one.", min=1)] = 8,
    count: Annotated[int, typer.Option(help="Grids searched at once.", min=1)] = 1000,
    seconds: Annotated[float, typer.Option(help="Time limit: of each grid on a CPU, of all on a GPU.", min=0.1)] = 20.0,
    out: Path = RESULTS / "batched_search.json",
) -> None:
    """Measure one part and add it to the file."""
    here = pick_device(device)
    result: dict[str, Any] = (
        json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"benchmark": "batched search"}
    )
    if here.type == "cpu":
        part = search_one_by_one(side, grids, seconds)
    elif result.get("side") == side and "cpu" in result:
        part = search_all(side, count, seconds, here, result["cpu"])
    else:
        raise InputError(f"Expected the CPU's part for grids {side} x {side} first", file=out)
    result |= {"side": side, here.type: part | {"environment": environment(here)}}
    with atomic_write(out) as handle:
        json.dump(result, handle, indent=1)
    typer.echo(json.dumps(part, indent=1))


if __name__ == "__main__":
    typer.run(main)
