"""The local-polytope relaxation, solved by HiGHS through SciPy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.errors import need
from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.infer.tolerances import INTEGRAL, is_proved
from fgnn.infer.trivial_bound import factor_maxima
from fgnn.pgm import ModelBatch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PRESOLVE_FROM = 4000  # below this many columns HiGHS's presolve costs more than it saves


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
        \ell_c \le \sum_{i \in s(c)} p_i(1) \le u_c \text{ for budgets}

    Entries at ``-inf`` are fixed to 0. ``bound`` is the value of the dual that HiGHS returns, evaluated here with
    every violation of its tolerances (1e-7) charged against it: it is never below the optimum, up to rounding in
    float64, and above the LP's value by no more than those tolerances.

    Rounding ``argmax``: each variable takes the state of largest marginal, the lowest such state on ties. The
    rounded assignment is ``proved`` where its score meets the bound to 1e-9 (relative); it may break constraints.
    Where the LP is infeasible, so is the model, and that is proved.

    Args:
        rounding: ``argmax``, the only rule.
        jobs: Processes that share the batch.

    Returns:
        An answer whose ``info`` has ``integral`` (B,): whether all marginals are within 1e-6 of 0 or 1, and
        ``marginals`` (B, N, K).
    """
    if rounding != "argmax":
        raise ValueError(f"Expected the rounding argmax (got {rounding!r})")
    if jobs < 1:
        raise ValueError(f"Expected at least one job (got {jobs})")
    start = time.monotonic()
    deadline = None if time_limit is None else start + time_limit
    program = _program(batch)
    numbers = _numbers(batch, program)
    total = len(batch)
    results: list[_Result] = []
    if jobs > 1 and total > 1:
        joblib = need("joblib")
        parts = np.array_split(np.arange(total), min(total, 4 * jobs))
        work = (joblib.delayed(_solve_many)(program, numbers.select(part), deadline) for part in parts)
        for done in joblib.Parallel(n_jobs=jobs)(work):
            results += done
    else:
        told = start
        for b in range(total):
            results += _solve_many(program, numbers.select(np.array([b])), deadline)
            if progress is not None and time.monotonic() - told > 0.5:
                told = time.monotonic()
                progress(Progress("lp", told - start, -np.inf, np.inf, f"{b + 1} of {total} models"))

    # Without an LP solution: the best states by the unaries alone, bounded by each factor's own maximum.
    marginals = np.zeros(batch.unary.shape)
    np.put_along_axis(marginals, batch.unary.argmax(2, keepdim=True).cpu().numpy(), 1.0, axis=2)
    for b, result in enumerate(results):
        marginals[b] = _marginals(program, result, marginals[b])
    assignment = torch.from_numpy(marginals.argmax(2)).to(batch.device)
    bound = torch.tensor([r.bound for r in results], dtype=torch.float64, device=batch.device)
    bound = torch.minimum(bound, factor_maxima(batch))
    solved = torch.tensor([r.solved for r in results], dtype=torch.bool, device=batch.device)
    fractions = np.abs(marginals - np.round(marginals)).max(axis=(1, 2), initial=0.0)
    integral = torch.from_numpy(fractions <= INTEGRAL).to(batch.device) & solved & (bound > -torch.inf)
    score = batch.score(assignment)
    return Answer.of(
        assignment,
        bound=bound,
        proved=is_proved(score, bound) & (integral | (score == -torch.inf)),
        converged=solved,
        iterations=torch.tensor([r.iterations for r in results], dtype=torch.int64, device=batch.device),
        timed_out=torch.tensor([r.timed_out for r in results], dtype=torch.bool, device=batch.device),
        info={"integral": integral, "marginals": torch.from_numpy(marginals).to(batch.device)},
    )


@dataclass(frozen=True, eq=False)
class _Program:
    """What all models of the batch share: the rows. Columns are variables' states 1.. and then tables' cells.

    State 0 has no column: its marginal is what the others leave.
    """

    cardinalities: Ints  # shape: (N,)
    first: Ints  # shape: (N,), the column of each variable's state 1
    num_states: int  # columns of variables
    cells: Ints  # which cells of all tables' concatenation have a column
    equal: Any  # CSC, the tables' rows
    equal_to: Floats
    less: Any  # CSC, rows of budgets and of variables with three or more states
    binding: Ints  # which of those rows are kept


@dataclass(frozen=True, eq=False)
class _Numbers:
    """What differs from model to model, all (B, .): costs to minimise, upper bounds of columns, right-hand sides."""

    cost: Floats
    lower: Floats
    upper: Floats
    less_than: Floats
    constant: Floats  # shape: (B,)
    hopeless: NDArray[np.bool_]  # shape: (B,), a variable has no allowed state

    def select(self, which: Ints) -> _Numbers:
        return _Numbers(
            self.cost[which],
            self.lower[which],
            self.upper[which],
            self.less_than[which],
            self.constant[which],
            self.hopeless[which],
        )


@dataclass(frozen=True, eq=False)
class _Result:
    states: Floats | None  # the columns of variables
    bound: float
    solved: bool
    timed_out: bool
    iterations: int


def _program(batch: ModelBatch) -> _Program:
    from scipy import sparse

    cards = batch.cardinalities.cpu().numpy()
    first = np.concatenate([[0], np.cumsum(cards - 1)]).astype(np.int64)
    width = int(first[-1])
    rows, cols, vals = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    right: list[Floats] = [np.zeros(0)]
    height, at = 0, 0
    used = [np.zeros(0, np.bool_)]
    for t in batch.tables:
        scopes, shape = t.scopes.cpu().numpy(), t.shape
        count, size = len(scopes), int(np.prod(shape))
        states = np.stack(np.unravel_index(np.arange(size), shape), 1)  # shape: (cells, A)
        cell = at + np.arange(count * size).reshape(count, size)
        here = height + np.arange(count)
        rows.append(np.repeat(here, size))  # the cells of a table sum to 1
        cols.append(width + cell.ravel())
        vals.append(np.ones(count * size))
        height += count
        right.append(np.ones(count))
        for axis, k in enumerate(shape):  # and to the marginals of its variables, states 1..
            link = height + np.arange(count * (k - 1)).reshape(count, k - 1)
            kept = np.nonzero(states[:, axis])[0]
            rows += [link[:, states[kept, axis] - 1].ravel(), link.ravel()]
            cols += [width + cell[:, kept].ravel(), (first[scopes[:, axis], None] + np.arange(k - 1)).ravel()]
            vals += [np.ones(count * len(kept)), np.full(link.size, -1.0)]
            height += link.size
            right.append(np.zeros(link.size))
        used.append((t.values > -torch.inf).any(0).cpu().numpy().ravel())
        at += count * size
    kept_cells = np.nonzero(np.concatenate(used))[0]
    equal = sparse.csc_array(
        (np.concatenate(vals), (np.concatenate(rows), np.concatenate(cols))), shape=(height, width + at)
    )
    equal = equal[:, np.concatenate([np.arange(width), width + kept_cells])]

    many = np.nonzero(cards > 2)[0]  # at most 1 is left to states 1.., and all of it where state 0 is forbidden
    entry = np.concatenate([np.arange(first[i], first[i + 1]) for i in many]) if many.size else np.zeros(0, np.int64)
    row = np.repeat(np.arange(many.size), cards[many] - 1)
    parts = [(row, entry, np.ones(entry.size)), (row + many.size, entry, -np.ones(entry.size))]
    height = 2 * many.size
    for u in batch.budgets:
        scopes = u.scopes.cpu().numpy()
        row = height + np.repeat(np.arange(len(scopes)), scopes.shape[1])
        entry = first[scopes].ravel()
        parts += [(row, entry, np.ones(entry.size)), (row + len(scopes), entry, -np.ones(entry.size))]
        height += 2 * len(scopes)
    r, c, v = (np.concatenate([p[k] for p in parts]) for k in range(3))
    less = sparse.csr_array((v, (r, c)), shape=(height, width + kept_cells.size))
    # A row that no model can break (at least 0, at most all) only costs time.
    binding = np.nonzero((_right_hand_sides(batch, cards) < np.asarray(less.maximum(0).sum(1))).any(0))[0]
    return _Program(cards, first[:-1], width, kept_cells, equal, np.concatenate(right), less[binding].tocsc(), binding)


def _right_hand_sides(batch: ModelBatch, cardinalities: Ints) -> Floats:
    """The bounds of the inequality rows, shape (B, rows): variables of three or more states, then budgets."""
    forbidden = batch.unary[:, torch.from_numpy(cardinalities > 2), 0].cpu().numpy() == -np.inf
    sides = [np.ones(forbidden.shape), np.where(forbidden, -1.0, 0.0)]
    for u in batch.budgets:
        sides += [u.at_most.double().cpu().numpy(), -u.at_least.double().cpu().numpy()]
    return np.concatenate(sides, 1)


def _numbers(batch: ModelBatch, program: _Program) -> _Numbers:
    unary = batch.unary.double().cpu().numpy()  # shape: (B, N, K)
    real = batch.state_mask.cpu().numpy()
    allowed = unary > -np.inf
    base = np.where(allowed[:, :, 0], unary[:, :, 0], 0.0) if unary.shape[2] else np.zeros(unary.shape[:2])
    gain = np.where(allowed, unary - base[:, :, None], 0.0)[:, :, 1:][:, real[:, 1:]]
    lower, upper = np.zeros_like(gain), allowed[:, :, 1:][:, real[:, 1:]].astype(np.float64)
    binary = np.nonzero(program.cardinalities == 2)[0]
    forced = ~allowed[:, binary, 0]
    lower[:, program.first[binary]] = np.where(forced, 1.0, 0.0)
    hopeless = ~(allowed & real).any(2).all(1)
    upper = np.maximum(upper, lower)  # only where a binary variable is hopeless

    cells = [t.values.double().flatten(1).cpu().numpy() for t in batch.tables]
    theta = np.concatenate(cells, 1)[:, program.cells] if cells else np.zeros((len(unary), 0))
    theta_ok = theta > -np.inf
    return _Numbers(
        cost=-np.concatenate([gain, np.where(theta_ok, theta, 0.0)], 1),
        lower=np.concatenate([lower, np.zeros_like(theta)], 1),
        upper=np.concatenate([upper, theta_ok.astype(np.float64)], 1),
        less_than=_right_hand_sides(batch, program.cardinalities)[:, program.binding],
        constant=base.sum(1) + batch.constant.double().cpu().numpy(),
        hopeless=hopeless,
    )


def _solve_many(program: _Program, numbers: _Numbers, deadline: float | None) -> list[_Result]:
    return [_solve_one(program, numbers, b, deadline) for b in range(len(numbers.cost))]


def _solve_one(program: _Program, numbers: _Numbers, b: int, deadline: float | None) -> _Result:
    from scipy.optimize import linprog

    cost, lower, upper, less_than = (x[b] for x in (numbers.cost, numbers.lower, numbers.upper, numbers.less_than))
    constant = float(numbers.constant[b])
    if numbers.hopeless[b] or constant == -np.inf:
        return _Result(None, -np.inf, True, False, 0)
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        return _Result(None, np.inf, False, True, 0)
    if not cost.size:
        return _Result(cost, constant, True, False, 0)
    scale = max(float(np.abs(cost).max()), 1e-300)
    options: dict[str, Any] = {"presolve": cost.size >= _PRESOLVE_FROM}
    if left is not None:
        options["time_limit"] = left
    has_less, has_equal = program.less.shape[0] > 0, program.equal.shape[0] > 0
    found = linprog(
        cost / scale,
        A_ub=program.less if has_less else None,
        b_ub=less_than if has_less else None,
        A_eq=program.equal if has_equal else None,
        b_eq=program.equal_to if has_equal else None,
        bounds=np.stack([lower, upper], 1),
        method="highs",
        options=options,
    )
    if found.status == 2:
        return _Result(None, -np.inf, True, False, int(found.nit))
    if found.status != 0 or found.x is None:
        return _Result(None, np.inf, False, found.status == 1, int(found.nit or 0))
    # Any multipliers bound the minimum from below, so HiGHS's tolerances cannot make this bound wrong.
    reduced, value = cost / scale, 0.0
    if has_equal:
        y = found.eqlin.marginals
        reduced = reduced - program.equal.T @ y
        value += float(program.equal_to @ y)
    if has_less:
        z = np.minimum(found.ineqlin.marginals, 0.0)
        reduced = reduced - program.less.T @ z
        value += float(less_than @ z)
    value += float(np.minimum(reduced * lower, reduced * upper).sum())
    return _Result(found.x[: program.num_states], constant - scale * value, True, False, int(found.nit))


def _marginals(program: _Program, result: _Result, fallback: Floats) -> Floats:
    """Marginals (N, K) from the columns of states 1.., or the fallback where there is no LP solution."""
    if result.states is None:
        return fallback
    p = np.zeros_like(fallback)
    real = np.arange(1, p.shape[1]) < program.cardinalities[:, None]
    p[:, 1:][real] = np.clip(result.states, 0.0, 1.0)
    p[:, 0] = np.maximum(1.0 - p[:, 1:].sum(1), 0.0)
    return p
