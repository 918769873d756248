"""`lp`: the local-polytope relaxation, solved by HiGHS through SciPy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.errors import need
from fgnn.infer.certificate import certified
from fgnn.infer.lowered import counting, lowers_except
from fgnn.infer.lp.flows import most_arcs
from fgnn.infer.lp.program import Floats, Numbers, Program, linear_program
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import Answer, OnProgress
from fgnn.pgm import ModelBatch

_INTEGRAL = 1e-6  # a marginal this close to 0 or 1 counts as integral: ten times the feasibility tolerance of HiGHS
_COLUMN_SECONDS = 1e-6  # of a program: building and handing over a column, which cannot be interrupted
_MOST_ARCS = 20_000_000  # of all flows: a few GiB, which HiGHS copies
_PRESOLVE_FROM = 4000  # columns; for smaller programs presolve costs more than it saves
# HiGHS does not look at the clock while it copies and presolves a program, at this many coefficients a second or more.
_PRESOLVED_PER_SECOND = 0.3e6


@lowers_except(counting)
@certified
def solve_lp(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    rounding: str = "argmax",
    jobs: int = 1,
) -> Answer:
    r"""Bound the optimum by the linear program over locally consistent marginals, and round its solution.

    .. math:: \max_{p, \mu \ge 0} \sum_i \theta_i \cdot p_i + \sum_c \theta_c \cdot \mu_c \quad\text{s.t.}\quad
        \sum_{x_c : x_i = s} \mu_c(x_c) = p_i(s), \; \sum_s p_i(s) = 1, \;
        \ell_c \le \sum_{i \in s(c)} w_i \cdot p_i \le u_c \text{ for bounds on sums}

    Bounds are all that a counter needs whose weights are 0 or 1. Other factors that depend on a sum are flows over
    partial sums (`flows`), and those that do not are tables over auxiliary variables. Entries at ``-inf`` are fixed to
    0. ``bound`` is the value of the dual solution of HiGHS, recomputed here with a bound on the rounding errors, so
    that its tolerances (1e-7) cannot push it below the optimum; it exceeds the LP's value by no more than those
    tolerances.

    Rounding ``argmax``: each variable takes the state of largest marginal, the lowest such state on ties. The result
    may break constraints; it is optimal if its score meets the bound. If the LP is infeasible, so is the model.

    Args:
        rounding: ``argmax``, the only rule.
        jobs: Processes among which the batch is divided.

    Returns:
        An answer with ``info["integral"]`` (B,), whether all marginals are within 1e-6 of 0 or 1, and
        ``info["marginals"]`` (B, N, K).
    """
    if rounding != "argmax":
        raise ValueError(f"Expected the rounding argmax (got {rounding!r})")
    if jobs < 1:
        raise ValueError(f"Expected at least one job (got {jobs})")
    deadline = None if time_limit is None else time.monotonic() + time_limit
    arcs = most_arcs(batch)
    if arcs > _MOST_ARCS:
        raise ValueError(f"Expected flows of at most {_MOST_ARCS:,} arcs over partial sums (got up to {arcs:,})")
    columns = batch.state_mask.sum().item() + sum(t.values[:1].numel() for t in batch.tables) + arcs
    if time_limit is not None and columns * _COLUMN_SECONDS > time_limit:
        results = [_Result(None, np.inf, solved=False, timed_out=True)] * len(batch)
    else:
        results = _solve_all(*linear_program(batch), deadline, jobs, progress)

    marginals = _marginals(batch, results)

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(r, name) for r in results], dtype=dtype, device=batch.device)

    assignment = torch.from_numpy(marginals.argmax(2)).to(batch.device)
    bound = column("bound", torch.float64)
    solved = column("solved", torch.bool)
    fractions = np.abs(marginals - np.round(marginals)).max(axis=(1, 2), initial=0.0)
    integral = torch.from_numpy(fractions <= _INTEGRAL).to(batch.device) & solved & (bound > -torch.inf)
    return Answer.of(
        assignment,
        bound=bound,
        converged=solved,
        iterations=column("iterations", torch.int64),
        timed_out=column("timed_out", torch.bool),
        info={"integral": integral, "marginals": torch.from_numpy(marginals).to(batch.device)},
    )


@dataclass(frozen=True, eq=False)
class _Result:
    states: Floats | None  # the columns of variables
    bound: float
    solved: bool = True
    timed_out: bool = False
    iterations: int = 0


def _solve_all(
    program: Program, numbers: Numbers, deadline: float | None, jobs: int, progress: OnProgress | None
) -> list[_Result]:
    total = len(numbers.cost)
    if jobs > 1 and total > 1:
        joblib = need("joblib")
        parts = np.array_split(np.arange(total), min(total, 4 * jobs))
        work = (joblib.delayed(_solve_some)(program, numbers.select(part), deadline) for part in parts)
        return [result for part in joblib.Parallel(n_jobs=jobs)(work) for result in part]
    return _solve_some(program, numbers, deadline, progress)


def _solve_some(
    program: Program, numbers: Numbers, deadline: float | None, progress: OnProgress | None = None
) -> list[_Result]:
    reporter, results = Reporter("lp", progress), list[_Result]()
    for b in range(len(numbers.cost)):
        results.append(_solve_one(program, numbers, b, deadline))
        if reporter.due():
            reporter.send(f"{b + 1} of {len(numbers.cost)} models")
    return results


def _solve_one(program: Program, numbers: Numbers, b: int, deadline: float | None) -> _Result:
    from scipy.optimize import linprog

    each = (numbers.cost, numbers.lower, numbers.upper, numbers.less_than)
    cost, lower, upper, less_than = (x[b].copy() for x in each)  # contiguous, so that all sums round alike
    constant = float(numbers.constant[b])
    if numbers.infeasible[b] or constant == -np.inf:
        return _Result(None, -np.inf)
    left = None if deadline is None else deadline - time.monotonic()
    entries = program.equal.nnz + program.less.nnz
    if left is not None and left <= entries / _PRESOLVED_PER_SECOND:
        return _Result(None, np.inf, solved=False, timed_out=True)
    if not cost.size:
        possible = not program.equal_to.any() and bool((less_than >= 0).all())  # sums of nothing are 0
        return _Result(cost, constant if possible else -np.inf)
    scale = max(float(np.abs(cost).max()), 1e-300)
    cost = cost / scale
    options: dict[str, Any] = {"presolve": cost.size >= _PRESOLVE_FROM}
    if left is not None:
        options["time_limit"] = left
    rows = (program.less, less_than, program.equal, program.equal_to)
    # Many paths of a flow are equally good, on which the simplex method steps in place; an interior point does not.
    method = "highs" if program.flows is None else "highs-ipm"
    solution = linprog(cost, *rows, np.stack([lower, upper], 1), method, options=options)
    iterations = int(solution.nit or 0)
    if solution.status == 2:
        return _Result(None, -np.inf, iterations=iterations)
    if solution.status != 0 or solution.x is None:
        return _Result(None, np.inf, solved=False, timed_out=solution.status == 1, iterations=iterations)
    y, z = solution.eqlin.marginals, np.minimum(solution.ineqlin.marginals, 0.0)
    value = _dual_value(program, cost, lower, upper, less_than, y, z)
    error = 2.0**-52 * cost.size * (abs(constant) + abs(scale * value))
    return _Result(solution.x[: program.num_states], constant - scale * value + error, iterations=iterations)


def _dual_value(
    program: Program, cost: Floats, lower: Floats, upper: Floats, less_than: Floats, y: Floats, z: Floats
) -> float:
    """A lower bound on the minimum for any multipliers y and z <= 0, whatever is rounded here or within HiGHS."""
    reduced = cost - program.equal.T @ y - program.less.T @ z
    value = program.equal_to @ y + less_than @ z + np.minimum(reduced * lower, reduced * upper).sum()
    # The same with absolute values bounds all partial sums; no number passes through more additions than there are.
    sizes = np.abs(cost) + abs(program.equal.T) @ np.abs(y) + abs(program.less.T) @ np.abs(z)
    size = program.equal_to @ np.abs(y) + np.abs(less_than) @ np.abs(z) + sizes @ upper
    additions = cost.size + len(y) + len(z) + 16
    return float(value - 2.0**-52 * additions * size)


def _marginals(batch: ModelBatch, results: list[_Result]) -> Floats:
    """Marginals (B, N, K); of a model without an LP solution, the best states by its unaries alone."""
    marginals = np.zeros(batch.unary.shape)
    np.put_along_axis(marginals, batch.unary.argmax(2, keepdim=True).cpu().numpy(), 1.0, axis=2)
    real = batch.state_mask[:, 1:].cpu().numpy()
    for p, result in zip(marginals, results, strict=True):
        if result.states is not None:
            p[:] = 0.0
            p[:, 1:][real] = np.clip(result.states, 0.0, 1.0)
            p[:, 0] = np.maximum(1.0 - p[:, 1:].sum(1), 0.0)
    return marginals
