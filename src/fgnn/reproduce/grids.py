"""`fgnn reproduce grids`: loopy grids; small ones against the proved optimum, large ones in equal time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fgnn.data import GridMAP
from fgnn.errors import InputError, MissingExtra
from fgnn.infer.local_search.decode import decode
from fgnn.infer.local_search.refine import refine
from fgnn.pgm import ModelBatch
from fgnn.report import Page, Table, bars, percent
from fgnn.reproduce.experiment import Cell, Output, Setting, write_outputs
from fgnn.reproduce.milp import solve_milp
from fgnn.runtime.progress import Log
from fgnn.solvers import solve
from fgnn.tasks import Quality
from fgnn.tasks.map import draw_many
from fgnn.weights import weight_names

WEIGHTS = "deep-grid"
SEARCH = " + decode + refine"
LEARNED = f"FGNN{SEARCH}"
_Answer = Callable[[ModelBatch, float | None], Tensor]


@dataclass(frozen=True)
class Race:
    """Methods on large grids of one size, with the same time limit per instance."""

    size: int
    seconds: float
    scores: Mapping[str, Tensor]  # by method, shape: (B,); -inf if it found nothing feasible
    used: Mapping[str, float]  # by method, the actual seconds per instance

    def table(self) -> Table:
        """Compare with the best score of all methods."""
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
                    f"{self.used[name]:.1f}",
                ]
            )
        caption = f"{self.size} x {self.size}, {self.seconds:g} s each, {every.shape[1]} grids"
        return Table(["method", "best of all", "feasible %", "score lost to the best", "seconds each"], rows, caption)


def reproduce_grids(setting: Setting, out: str | Path, log: Log, weights: str = WEIGHTS) -> Output:
    """Compare methods on small grids with the proved optimum, and on larger grids than trained on with each other."""
    if weights == WEIGHTS and weights not in weight_names():
        raise InputError(f"Expected packaged weights {weights} (got none); train them with 'fgnn train'")
    start = time.perf_counter()
    methods = _methods(weights)
    count = min(setting.instances, 100 if setting.quick else 1000)
    cells = small_grids(setting, methods, count, log)
    limits = {20: 2.0, 50: 10.0} if setting.quick else {20: 10.0, 50: 60.0}
    races = [race(size, limit, 2 if setting.quick else 10, methods, setting, log) for size, limit in limits.items()]
    tables = [_table(cells), *(r.table() for r in races)]
    page = Page("Grids with budgets over patches: learned and other solvers")
    page.text(
        f"Spin glasses of 8 x 8 with overlapping budgets, {count} fresh instances against the proved optimum. LP, AD3, "
        "max-product and the exact solvers take the time they need. Followed by our local search (decode, then "
        "refine), AD3 and max-product get the time that the learned solver took. On larger grids than trained on, "
        "every method gets the same time and is compared with the best answer found."
    )
    for table in tables:
        page.table(table)
    picture = bars(
        ["optimal", "feasible"],
        {c.method: [100 * c.quality.optimal, 100 * c.quality.feasible] for c in cells},
        "% of 8 x 8 grids",
    )
    page.picture(picture, "Whole instances and feasibility on 8 x 8 grids")
    return write_outputs(Output("grids", setting, cells, tables, page, time.perf_counter() - start), out)


def small_grids(setting: Setting, methods: Mapping[str, _Answer], count: int, log: Log) -> list[Cell]:
    """Compare methods on 8 × 8 with the proved optimum; slow methods get fewer instances.

    Solvers followed by our local search get the time of the learned solver; the others take the time they need.
    """
    data = GridMAP(8, 8)
    examples = draw_many([data], count, setting.seed, "test", torch.device(setting.device))
    slow = {"toulbar2": 10, "MILP (HiGHS)": 10, "AD3": 100, "LP (HiGHS)": 100}
    cells: dict[str, Cell] = {}
    for name in sorted(methods, key=lambda n: n != LEARNED):
        some = examples.select(slice(0, slow.get(name, count)))
        limit = cells[LEARNED].ms / 1e3 if name.endswith(SEARCH) and name != LEARNED and LEARNED in cells else None
        log(f"8 x 8: {name}, {len(some)} instances" + (f" x {1e3 * limit:.1f} ms" if limit else ""))
        method_start = time.perf_counter()
        try:
            answer = methods[name](some.models, limit)
        except MissingExtra as error:
            log(f"{name} left out: {error}")
            continue
        ms = 1e3 * (time.perf_counter() - method_start) / len(some)
        cells[name] = Cell(name, 0, Quality.of(some.models, answer.to(some.labels.device), some.labels), ms)
    return [cells[name] for name in methods if name in cells]


def race(size: int, seconds: float, count: int, methods: Mapping[str, _Answer], setting: Setting, log: Log) -> Race:
    """Run every method on the same large grids, one grid at a time, within the same time limit."""
    batch = GridMAP(size, size).sample(count, seed=setting.seed + size, device=setting.device)
    scores: dict[str, Tensor] = {}
    used: dict[str, float] = {}
    for name, method in methods.items():
        if name in ("FGNN, raw", "FGNN + decode"):  # they end early, and the next method continues from there
            continue
        log(f"{size} x {size}: {name}, {count} x {seconds:g} s")
        method_start = time.perf_counter()
        try:
            answers = [method(batch.select(slice(b, b + 1)), seconds) for b in range(count)]
        except MissingExtra:
            continue
        used[name] = (time.perf_counter() - method_start) / count
        scores[name] = batch.score(torch.cat(answers).to(batch.device)).cpu()
    return Race(size, seconds, scores, used)


def _methods(weights: str) -> dict[str, _Answer]:
    """Return the methods by name: functions of models and seconds per model to assignments."""

    def by(method: str, search: bool = False, **options: Any) -> _Answer:
        def run(batch: ModelBatch, limit: float | None) -> Tensor:
            start = time.perf_counter()
            total = None if limit is None else limit * len(batch)

            def left() -> float | None:
                return None if total is None else max(1e-3, total - (time.perf_counter() - start))

            # the local search, if any, gets half of the time
            first = None if total is None else total / 2 if search else total
            answer = solve(batch, method, time_limit=first, **options).assignment
            if not search:
                return answer
            answer = decode(batch, starts=[answer], time_limit=left())
            return refine(batch, answer, rounds=4 if limit is None else None, time_limit=left())

        return run

    def learned(batch: ModelBatch, limit: float | None) -> Tensor:
        total = None if limit is None else limit * len(batch)
        rounds = 4 if limit is None else None
        return solve(batch, "fgnn", time_limit=total, weights=weights, rounds=rounds).assignment

    return {
        "LP (HiGHS)": by("lp"),
        "AD3": by("ad3"),
        f"AD3{SEARCH}": by("ad3", search=True),
        "max-product, damped": by("max-product", damping=0.5),
        f"max-product{SEARCH}": by("max-product", search=True, damping=0.5),
        "toulbar2": by("toulbar2"),
        "MILP (HiGHS)": lambda batch, limit: solve_milp(batch, limit)[0],
        "FGNN, raw": by("fgnn", weights=weights, decode=False),
        "FGNN + decode": by("fgnn", weights=weights),
        LEARNED: learned,
    }


def _table(cells: list[Cell]) -> Table:
    rows = []
    for cell in cells:
        q = cell.quality
        gap = "–" if q.gap is None else f"{q.gap:.3f}"
        rows.append([cell.method, percent(q.agreement), percent(q.optimal), percent(q.feasible), gap, f"{cell.ms:.2f}"])
    heading = ["8 x 8", "agreement %", "optimal %", "feasible %", "score lost", "ms each"]
    return Table(heading, rows, "Against the proved optimum")
