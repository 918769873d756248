"""The methods of `fgnn bench anytime`: ours, and the peers that run beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from fgnn.bench.anytime.cp_sat import solve_cp_sat
from fgnn.bench.anytime.families import glass
from fgnn.infer import Progress
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.reproduce.milp import solve_milp
from fgnn.solvers import SOLVERS, solve

MOST_POINTS = 200  # of a curve


@dataclass(eq=False)
class Recorder:
    """Assignments and bounds as they improve, with the seconds since `begin`."""

    model: GraphicalModel
    started: float = 0.0
    points: list[tuple[float, float | None, float | None]] = field(default_factory=list)  # seconds, score, bound

    def begin(self) -> None:
        self.started = time.perf_counter()

    def progress(self, update: Progress) -> None:
        """Take a solver's progress."""
        self.point(time.perf_counter() - self.started, update.score, update.bound)

    def assignment(self, seconds: float, states: list[int]) -> None:
        """Take a peer's new assignment, scored by the model."""
        self.point(seconds, self.model.score(states), np.inf)

    def point(self, seconds: float, score: float, bound: float) -> None:
        """Keep a point if the score or the bound improves."""
        last = self.points[-1] if self.points else (0.0, None, None)
        best = _better(max, last[1], float(score) if np.isfinite(score) else None)
        lowest = _better(min, last[2], float(bound) if np.isfinite(bound) else None)
        if (best, lowest) != last[1:]:
            self.points.append((round(seconds, 3), best, lowest))

    def curve(self) -> list[tuple[float, float | None, float | None]]:
        """At most `MOST_POINTS` points, the last included."""
        every = max(1, -(-len(self.points) // MOST_POINTS))
        return self.points[::-every][::-1]


def _better(pick: Callable[..., float], old: float | None, new: float | None) -> float | None:
    return old if new is None else new if old is None else pick(old, new)


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    assignment: list[int] | None
    seconds: float
    bound: float = np.inf
    proved: bool = False
    note: str = ""


@dataclass(frozen=True)
class Method:
    """A method, and whether its answer at a time limit differs from what a longer run has found by then.

    Where it does not, the longest run serves all limits.
    """

    run: Callable[[Recorder, float, int, int], Outcome]  # (recorder, time limit, threads, seed)
    by_limit: bool = True
    ours: bool = False
    warm: tuple[str, ...] = ()  # of our solvers, which `warm_up` runs
    needs: str = ""  # a package
    only: tuple[str, ...] = ("*",)  # the instances it can read, by pattern


def _solver(method: str, **options: Any) -> Callable[[Recorder, float, int, int], Outcome]:
    return partial(_run_solver, method, options)


def _run_solver(
    method: str, options: Mapping[str, Any], recorder: Recorder, time_limit: float, threads: int, seed: int
) -> Outcome:
    torch.set_num_threads(threads)
    recorder.begin()
    solution = solve(recorder.model, method, time_limit=time_limit, seed=seed, progress=recorder.progress, **options)
    seconds = time.perf_counter() - recorder.started
    return Outcome(solution.assignment.tolist(), seconds, solution.bound, solution.status == "optimal", solution.method)


def _run_cp_sat(recorder: Recorder, time_limit: float, threads: int, seed: int) -> Outcome:
    states, seconds, proved = solve_cp_sat(recorder.model, time_limit, threads, seed, recorder.assignment)
    return Outcome(states, seconds, proved=proved)


def _run_highs(recorder: Recorder, time_limit: float, threads: int, seed: int) -> Outcome:
    batch = ModelBatch.stack([recorder.model])
    recorder.begin()
    answer, proved = solve_milp(batch, time_limit)
    seconds = time.perf_counter() - recorder.started
    found = recorder.model.score(answer[0].tolist()) > -np.inf
    return Outcome(answer[0].tolist() if found else None, seconds, proved=bool(proved[0]))


# What the packaged networks read: pairs of binary variables, and budgets.
_BINARY = ("glass/*", "graph/*", "budgets/*", "uai2012/Grids/*", "uai2014/Grids*")
METHODS: dict[str, Method] = {
    "auto": Method(_solver("auto"), ours=True, warm=("auto",)),
    "search": Method(_solver("search"), ours=True, warm=("search",)),
    "guided search": Method(_solver("fgnn", search=True), ours=True, warm=("search",), only=_BINARY),
    "tree moves alone": Method(_solver("search", moves=("trees",)), by_limit=False, warm=("search",)),
    "annealing alone": Method(_solver("search", moves=("anneal",)), warm=("search",)),
    "dual": Method(_solver("dual"), by_limit=False, warm=("dual",)),
    "max-product": Method(_solver("max-product", decode="best"), by_limit=False, warm=("max-product",)),
    "toulbar2": Method(_solver("toulbar2", search="hbfs"), by_limit=False, warm=("toulbar2",), needs="pytoulbar2"),
    "toulbar2 VNS": Method(_solver("toulbar2", search="vns"), by_limit=False, warm=("toulbar2",), needs="pytoulbar2"),
    "CP-SAT": Method(_run_cp_sat, by_limit=False, needs="ortools"),
    "HiGHS": Method(_run_highs),
}


def missing(name: str) -> str | None:
    """Why a method cannot run here; None if it can."""
    unknown = [solver for solver in METHODS[name].warm if solver not in SOLVERS]
    if unknown:
        return f"there is no method {unknown[0]}"
    needed = METHODS[name].needs
    return f"{needed} is not installed" if needed and find_spec(needed) is None else None


def warm_up(name: str) -> None:
    """Solve a 3 x 3 grid, so that imports and the loading of compiled code are not timed."""
    tiny = glass(3, 0)
    solvers = METHODS[name].warm
    if "auto" in solvers and "search" in SOLVERS:  # the engine of `auto`, which so small a grid does not need
        solvers = (*solvers, "search")
    for solver in solvers:
        solve(tiny, solver)  # without a limit, which might end before the code is loaded
    if not solvers:
        METHODS[name].run(Recorder(tiny), 1.0, 1, 0)
