"""`fgnn reproduce grids`: loopy grids, where learning is worth having; small ones proved, large ones in equal time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fgnn.bench.milp import solve_milp
from fgnn.data import GridMAP
from fgnn.errors import InputError, MissingExtra
from fgnn.infer import solve
from fgnn.infer.decode import decode
from fgnn.pgm import ModelBatch
from fgnn.report.charts import bars
from fgnn.report.html import Page
from fgnn.report.tables import Table, percent
from fgnn.train.experiment import Cell, Say, Setting
from fgnn.train.map_task import draw_many
from fgnn.train.metrics import Quality
from fgnn.train.output import Output, write_outputs
from fgnn.weights import weight_names

WEIGHTS = "deep-grid"
_Answer = Callable[[ModelBatch, float | None], Tensor]


@dataclass(frozen=True)
class Race:
    """Methods on large grids of one size, with the same seconds for each instance."""

    size: int
    seconds: float
    scores: Mapping[str, Tensor]  # by method, (B,); -inf where it found nothing feasible

    def table(self) -> Table:
        """Against the best that any method found."""
        every = torch.stack(list(self.scores.values()))
        best = every.amax(0)
        rows = []
        for name, score in self.scores.items():
            lost = (best - score)[score > -torch.inf]
            rows.append(
                [
                    name,
                    f"{float((score >= best - 1e-6).double().mean()):.0%}",
                    percent(float((score > -torch.inf).double().mean()), digits=0),
                    f"{float(lost.mean()):.2f}" if len(lost) else "–",
                ]
            )
        caption = f"{self.size} x {self.size}, {self.seconds:g} s each, {every.shape[1]} grids"
        return Table(["method", "best of all", "feasible %", "score lost to the best"], rows, caption)


def reproduce_grids(setting: Setting, out: str | Path, say: Say, weights: str = WEIGHTS) -> Output:
    """Small grids against the proved optimum; large ones, never trained on, against the best of all methods."""
    if weights == WEIGHTS and weights not in weight_names():
        raise InputError(f"Expected the package's weights {weights} (they are not there); train them with 'fgnn train'")
    start = time.perf_counter()
    methods = _methods(weights, say)
    count = min(setting.instances, 100 if setting.quick else 1000)
    cells = small_grids(setting, methods, count, say)
    limits = {20: 2.0, 50: 10.0} if setting.quick else {20: 10.0, 50: 60.0}
    races = [race(size, limit, 2 if setting.quick else 10, methods, setting, say) for size, limit in limits.items()]
    tables = [_table(cells), *(r.table() for r in races)]
    page = Page("Grids with budgets over patches: learned and other solvers")
    page.text(
        f"Spin glasses of 8 x 8 with overlapping budgets, {count} fresh instances against the proved optimum; then "
        "larger grids, never trained on, where every method has the same time and is compared with the best found."
    )
    for table in tables:
        page.table(table)
    picture = bars(
        ["wholly optimal", "feasible"],
        {c.method: [100 * c.quality.optimal, 100 * c.quality.feasible] for c in cells},
        "% of 8 x 8 grids",
    )
    page.picture(picture, "Whole instances and feasibility on 8 x 8 grids")
    result = Output("grids", setting, cells, tables, page, time.perf_counter() - start)
    write_outputs(result, out)
    return result


def small_grids(setting: Setting, methods: Mapping[str, _Answer], count: int, say: Say) -> list[Cell]:
    """8 × 8 against the proved optimum; slow methods see fewer instances."""
    data = GridMAP(8, 8)
    examples = draw_many([data], count, setting.seed, "test", torch.device(setting.device))
    slow = {"toulbar2": 10, "MILP (HiGHS)": 10, "AD3": 100, "AD3 + decode": 100, "LP (HiGHS)": 100}
    cells = []
    for name, method in methods.items():
        some = examples.select(slice(0, slow.get(name, count)))
        say(f"8 x 8: {name}, {len(some)} instances")
        begun = time.perf_counter()
        try:
            answer = method(some.models, None)
        except MissingExtra as error:
            say(f"{name} left out: {error}")
            continue
        ms = 1e3 * (time.perf_counter() - begun) / len(some)
        cells.append(Cell(name, 0, Quality.of(some.models, answer.to(some.labels.device), some.labels), ms))
    return cells


def race(size: int, seconds: float, count: int, methods: Mapping[str, _Answer], setting: Setting, say: Say) -> Race:
    """Every method on the same large grids, one at a time, within the same seconds."""
    batch = GridMAP(size, size).sample(count, seed=setting.seed + size, device=setting.device)
    scores: dict[str, Tensor] = {}
    for name, method in methods.items():
        if name.startswith(("FGNN, raw", "FGNN + decode")):
            continue
        say(f"{size} x {size}: {name}, {count} x {seconds:g} s")
        try:
            found = [method(batch.select(slice(b, b + 1)), seconds) for b in range(count)]
        except MissingExtra:
            continue
        scores[name] = batch.score(torch.cat(found).to(batch.device)).cpu()
    return Race(size, seconds, scores)


def _methods(weights: str, say: Say) -> dict[str, _Answer]:
    """By name, from models and seconds for each to assignments."""

    def by(method: str, then_decode: bool = False, **options: Any) -> _Answer:
        def answer(batch: ModelBatch, limit: float | None) -> Tensor:
            limited = None if limit is None else limit * len(batch)
            found = solve(batch, method, time_limit=limited, **options).assignment
            return decode(batch, starts=[found], time_limit=limited) if then_decode else found

        return answer

    def learned(batch: ModelBatch, limit: float | None) -> Tensor:
        rounds = 4 if limit is None else None
        return solve(batch, "fgnn", time_limit=limit, weights=weights, rounds=rounds).assignment

    return {
        "LP (HiGHS)": by("lp"),
        "AD3": by("ad3"),
        "AD3 + decode": by("ad3", then_decode=True),
        "max-product, damped": by("max-product", damping=0.5),
        "max-product + decode": by("max-product", then_decode=True, damping=0.5),
        "toulbar2": by("toulbar2"),
        "MILP (HiGHS)": lambda batch, limit: solve_milp(batch, limit),
        "FGNN, raw": by("fgnn", weights=weights, decode=False),
        "FGNN + decode": by("fgnn", weights=weights),
        "FGNN + decode + refine": learned,
    }


def _table(cells: list[Cell]) -> Table:
    rows = []
    for cell in cells:
        q = cell.quality
        gap = "–" if q.gap != q.gap else f"{q.gap:.3f}"
        rows.append([cell.method, percent(q.agreement), percent(q.optimal), percent(q.feasible), gap, f"{cell.ms:.2f}"])
    heading = ["8 x 8", "agreement %", "wholly optimal %", "feasible %", "score lost", "ms each"]
    return Table(heading, rows, "Against the proved optimum")
