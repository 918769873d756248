"""Hand every proof of every method, on random models, to a checker that uses exact integers and shares no code with it.

Each model is drawn as small integers times a power of two, so that its scores are integers in that unit: the checker
enumerates all assignments with NumPy's int64, or Python's integers where constants are large, and never rounds. A
batch holds many models of one random structure; they differ in numbers, units, constants, forbidden entries and
budgets. Every ``gap`` must cover the distance to the true optimum, ``optimal`` must have a small one, and
``infeasible`` with a bound of ``-inf`` must be true.

    python -m tools.check_proofs --models 1000000 --out benchmarks/results/proofs.json

The results file is written after every batch, and a later run with the same seed continues from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn import GraphicalModel, ModelBatch, SolutionBatch, solve
from tools.long_check import arguments, check_batches, report_faults

Ints = NDArray[np.int64]

_NEVER = np.int64(-(2**40))  # stands for -inf; sums of finite entries stay far above half of it

# Methods with their options, and the share of batches that each gets.
METHODS: dict[str, tuple[str, dict[str, Any], float]] = {
    "exact": ("exact", {}, 1.0),
    "exact, float32": ("exact", {"dtype": torch.float32}, 0.3),
    "brute-force": ("brute-force", {}, 1.0),
    "auto": ("auto", {"time_limit": 60.0}, 0.3),
    "auto, narrow": ("auto", {"time_limit": 60.0, "max_states": 2}, 0.02),
    "lp": ("lp", {}, 0.05),
    "ad3": ("ad3", {"iterations": 200}, 0.3),
    "ad3, float64": ("ad3", {"iterations": 200, "tolerance": 1e-7}, 0.1),
    "ad3, branch and bound": ("ad3", {"iterations": 100, "branch_and_bound": True, "max_nodes": 20}, 0.05),
    "max-product": ("max-product", {"iterations": 50}, 0.3),
    "toulbar2": ("toulbar2", {}, 0.03),
    "search": ("search", {"rounds": 2, "workers": 1}, 0.1),
}
DTYPES = (torch.float64, torch.float64, torch.float32, torch.bfloat16)
LARGEST_INTEGER = {torch.float64: 2**20, torch.float32: 2**20, torch.bfloat16: 2**7}


@dataclass(frozen=True)
class Structure:
    """Cardinalities, scopes of tables, and budgets with their bounds."""

    cards: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    budgets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Models:
    """Models of one structure in integers; ``factors`` are the unaries and then the tables, `_NEVER` for -inf."""

    structure: Structure
    factors: list[Ints]  # shape: (B, k_1, ..., k_A) each
    bounds: Ints  # shape: (B, budgets, 2), at least and at most
    constants: list[int]  # in units of the model
    units: NDArray[np.float64]  # shape: (B,), powers of two

    def batch(self, dtype: torch.dtype) -> ModelBatch:
        """The same models for `solve`."""
        return ModelBatch.stack([self._model(b) for b in range(len(self.units))], dtype=dtype)

    def _model(self, b: int) -> GraphicalModel:
        count, unit = len(self.structure.cards), self.units[b]
        model = GraphicalModel(list(self.structure.cards))
        values = [np.where(f[b] == _NEVER, -np.inf, f[b] * unit) for f in self.factors]
        for i in range(count):
            model.add_unary(i, values[i])
        for scope, table in zip(self.structure.scopes, values[count:], strict=True):
            model.add_table(scope, table)
        for scope, (low, high) in zip(self.structure.budgets, self.bounds[b].tolist(), strict=True):
            model.add_budget(scope, high, at_least=low)
        model.constant = float(self.constants[b]) * float(unit)
        return model


# ---- drawing ----------------------------------------------------------------------------------------------------


def draw_structure(rng: np.random.Generator) -> Structure:
    count = int(rng.integers(1, 6))
    cards = tuple(int(k) for k in np.where(rng.random(count) < 0.6, 2, rng.integers(1, 5, size=count)))
    arities = [int(rng.integers(2, min(3, count) + 1)) for _ in range(rng.integers(0, 6))] if count > 1 else []
    scopes = {tuple(int(i) for i in rng.permutation(count)[:arity]) for arity in arities}
    binary = [i for i, k in enumerate(cards) if k == 2]
    sizes = [int(rng.integers(1, len(binary) + 1)) for _ in range(rng.integers(0, 3))] if binary else []
    budgets = tuple(tuple(int(i) for i in rng.permutation(binary)[:size]) for size in sizes)
    return Structure(cards, tuple(sorted(scopes)), budgets)


def draw_models(rng: np.random.Generator, structure: Structure, count: int, largest: int) -> Models:
    """Numbers of several kinds: small and large integers, mixed sizes, ties, constants, hidden constants, -inf."""
    shapes = [(k,) for k in structure.cards] + [tuple(structure.cards[i] for i in s) for s in structure.scopes]
    sizes = 2 ** rng.integers(1, int(math.log2(largest)), size=count)
    forbidden = rng.choice([0.0, 0.0, 0.1, 0.5], size=count)
    hidden = np.where(rng.random(count) < 0.2, largest // 2, 0)
    mixed = rng.random(count) < 0.2
    factors: list[Ints] = []
    for shape in shapes:
        spread = (count, *(1 for _ in shape))
        limit = np.where(mixed & (rng.random(count) < 0.5), 2, sizes).reshape(spread)
        values: Ints = rng.integers(-limit, limit + 1, size=(count, *shape))
        if largest > 2**10:
            values += hidden.reshape(spread) * rng.integers(-1, 2, size=spread)
        factors.append(np.where(rng.random((count, *shape)) < forbidden.reshape(spread), _NEVER, values))
    ends = [np.sort(rng.integers(0, len(s) + 1, size=(count, 2)), axis=1) for s in structure.budgets]
    bounds = np.stack([np.zeros((count, 2), np.int64), *ends], 1)[:, 1:]
    wide = largest > 2**10
    constants = [int(c) for c in rng.choice([0, 0, 1, -(2**40), 2**50 if wide else 3], size=count)]
    powers = rng.choice([0, 0, -40, 40, -900 if wide else -90, 900 if wide else 60, -1040 if wide else 3], size=count)
    if not wide:
        constants = [c % 128 for c in constants]
    return Models(structure, factors, bounds, constants, np.ldexp(1.0, powers.astype(np.int64)))


# ---- checking ---------------------------------------------------------------------------------------------------


def integer_scores(models: Models) -> tuple[list[tuple[int, ...]], Ints]:
    """All assignments, and the scores (B, S) without constants; below ``_NEVER / 2`` where infeasible."""
    structure = models.structure
    states = list(product(*(range(k) for k in structure.cards)))
    columns = np.array(states, dtype=np.int64).reshape(len(states), -1).T
    total = np.zeros((len(models.units), len(states)), dtype=np.int64)
    scopes = [(i,) for i in range(len(structure.cards))] + list(structure.scopes)
    for scope, factor in zip(scopes, models.factors, strict=True):
        total += factor[(slice(None), *(columns[i] for i in scope))]
    for c, scope in enumerate(structure.budgets):
        ones = columns[list(scope)].sum(0)
        low, high = models.bounds[:, c, :1], models.bounds[:, c, 1:]
        total = np.where((ones < low) | (ones > high), _NEVER, total)
    return states, total


def check(models: Models, solutions: SolutionBatch) -> list[str]:
    """What is wrong with the solutions; nothing if every claim is true."""
    states, scores = integer_scores(models)
    place = {x: s for s, x in enumerate(states)}
    best = scores.max(1)
    count = len(models.factors)
    wrong = []
    for b, x in enumerate(solutions.assignment.tolist()):
        own, top = int(scores[b, place[tuple(x)]]), int(best[b])
        feasible, possible = own > _NEVER // 2, top > _NEVER // 2
        unit, gap, status = float(models.units[b]), float(solutions.gap[b]), solutions.status[b]
        where = f"model {b}: {status}, gap {gap / unit:g}, {top - own} more is reachable"
        if bool(solutions.feasible[b]) != feasible:
            wrong.append(f"{where}, feasible is {bool(solutions.feasible[b])}")
        if float(solutions.bound[b]) == -math.inf and possible:
            wrong.append(f"{where}, called infeasible")
        if math.isnan(gap) or math.isnan(float(solutions.bound[b])):
            wrong.append(f"{where}, not a number")
        if status == "optimal" and not feasible:
            wrong.append(f"{where}, but infeasible")
        if not feasible:
            continue
        # An integer distance in the unit of the model against a float64 gap: both are exact.
        if math.isfinite(gap) and (top - own) > gap / unit:
            wrong.append(f"{where}, which the gap does not cover")
        peaks = sum(int(f[b][f[b] > _NEVER // 2].max()) for f in models.factors)
        # A gap near the smallest number of float64 is rounded to a multiple of it.
        if status == "optimal" and gap / unit > min(1e-9, 1e-13 * count) * (peaks - own) + 2.0**-1074 / unit:
            wrong.append(f"{where}, too large a gap for a proof")
    return wrong


# ---- running ----------------------------------------------------------------------------------------------------


def run_batch(
    seed: int, number: int, size: int, only: str | None = None
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Draw one batch, solve it with the methods whose turn it is, and check them; counts by method, and faults."""
    rng = np.random.default_rng([seed, number])
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    models = draw_models(rng, draw_structure(rng), size, LARGEST_INTEGER[dtype])
    if dtype != torch.float64:  # whose numbers and constants must be exact in it, and small enough for `solve`
        narrow = np.ldexp(1.0, rng.choice([0, -40, 40], size=size).astype(np.int64))
        models = Models(models.structure, models.factors, models.bounds, [0] * size, narrow)
    counts: dict[str, dict[str, int]] = {}
    faults = []
    for method, (name, options, share) in METHODS.items():
        if (only != method) if only else (rng.random() >= share):
            continue
        part = size if share > 0.05 else max(1, size // 8)
        some = Models(
            models.structure,
            [f[:part] for f in models.factors],
            models.bounds[:part],
            models.constants[:part],
            models.units[:part],
        )
        solutions = solve(some.batch(dtype), name, **options)
        tally = {"answers": part, **{s: solutions.status.count(s) for s in ("optimal", "feasible", "infeasible")}}
        tally["proved infeasible"] = int((solutions.bound == -torch.inf).sum())
        counts[method] = tally
        faults += [f"seed {seed}, batch {number}, {dtype}, {method}, {what}" for what in check(some, solutions)]
    return counts, faults


def _add(results: dict[str, Any], counts: dict[str, dict[str, int]]) -> None:
    methods = results.setdefault("methods", {})
    for method, tally in counts.items():
        total = methods.setdefault(method, {})
        for name, value in tally.items():
            total[name] = total.get(name, 0) + value
    results["answers"] = sum(t["answers"] for t in methods.values())
    results["proofs"] = sum(t["optimal"] + t["proved infeasible"] for t in methods.values())


def check_many(
    models: int,
    *,
    seed: int = 0,
    size: int = 250,
    out: Path | None = None,
    seconds: float = math.inf,
    only: str | None = None,
) -> dict[str, Any]:
    """Check at least ``models`` models, continuing from the results in ``out``; returns the results."""
    command = f"python -m tools.check_proofs --models {models} --seed {seed} --size {size}"
    return check_batches(
        lambda number: run_batch(seed, number, size, only),
        _add,
        {"seed": seed, "size": size, "only": only},
        models=models,
        command=command + (f" --only '{only}'" if only else ""),
        out=out,
        seconds=seconds,
    )


def main() -> None:
    parser = arguments(__doc__, models=100_000, size=250, out="benchmarks/results/proofs.json")
    parser.add_argument("--only", choices=list(METHODS), help="check one method, on every batch")
    options = parser.parse_args()
    some = {name: getattr(options, name) for name in ("seed", "size", "out", "seconds", "only")}
    results = check_many(options.models, **some)
    print(f"{results['models']:,} models, {results['answers']:,} answers, {results['proofs']:,} proofs checked")
    report_faults(results)


if __name__ == "__main__":
    main()
