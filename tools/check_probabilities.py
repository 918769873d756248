"""Check every claim about probabilities on random models: marginals, log Z, samples, M-best lists and CRFs.

The models are those of `tools.check_proofs`: small integers times a power of two, so that every score is an exact
integer in its unit. The checker enumerates all assignments in integers, takes differences from the best exactly, and
only then exponentials; it shares no code with the methods. An answer called ``exact`` must be right to 1e-6, whatever
units and constants a model has, ``infeasible`` must be true, a bound must lie above log Z, the M best assignments must
be the M best, and no sample may be infeasible.

    python -m tools.check_probabilities --models 100000 --out benchmarks/results/probabilities.json

The results file is written after every batch, and a later run with the same seed continues from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn import log_partition, marginals
from fgnn.infer import best_assignments, sample
from fgnn.infer.probability import MarginalsBatch
from fgnn.nn import CRF
from tools.check_proofs import (
    _NEVER,
    DTYPES,
    LARGEST_INTEGER,
    Ints,
    Models,
    draw_models,
    draw_structure,
    integer_scores,
)
from tools.long_check import arguments, check_batches, report_faults

TOLERANCE = 1e-6
METHODS = ("exact", "brute-force", "auto", "sum-product")


@dataclass(frozen=True, eq=False)
class Truth:
    """What is true of models of one structure, from their integer scores."""

    states: NDArray[np.int64]  # shape: (S, N), all assignments
    scores: Ints  # shape: (B, S), in units, without constants
    weights: NDArray[np.float64]  # shape: (B, S), exp of the score less the best score
    feasible: NDArray[np.bool_]  # shape: (B,)

    @classmethod
    def of(cls, models: Models) -> Truth:
        states, scores = integer_scores(models)
        allowed = scores > _NEVER // 2
        best = np.where(allowed, scores, np.iinfo(np.int64).min).max(1)
        below = np.where(allowed, scores - best[:, None], 0) * models.units[:, None]  # products with powers of two
        weights = np.where(allowed, np.exp(below), 0.0)
        table = np.array(states, dtype=np.int64).reshape(len(states), -1)
        return cls(table, np.where(allowed, scores, _NEVER), weights, np.asarray(allowed.any(1)))

    def log_z_error(self, models: Models, b: int, value: float) -> float:
        """How far a value is from log Z, without cancellation."""
        best = int(self.scores[b].max()) + models.constants[b]
        rest = Fraction(value) - best * Fraction(float(models.units[b]))
        total = math.fsum(self.weights[b])
        return abs(float(rest) - math.log(total)) if abs(rest) < 2**900 else math.inf

    def marginal(self, b: int, variable: int, states: int) -> NDArray[np.float64]:
        counts = np.bincount(self.states[:, variable], self.weights[b], minlength=states)
        result: NDArray[np.float64] = counts / counts.sum()
        return result


# ---- checks -----------------------------------------------------------------------------------------------------


def check_marginals(models: Models, truth: Truth, answers: MarginalsBatch) -> list[str]:
    """What is wrong with statuses, probabilities, log Z and bounds."""
    wrong = []
    for b, status in enumerate(answers.status):
        log_z, bound = float(answers.log_partition[b]), float(answers.bound[b])
        where = f"model {b}, {status}"
        if (status == "infeasible") != (not truth.feasible[b]) and status in ("infeasible", "exact"):
            wrong.append(f"{where}: feasible is {truth.feasible[b]}")
        if not truth.feasible[b] or status == "infeasible":
            continue
        if math.isnan(bound) or (math.isfinite(bound) and _below(models, truth, b, bound)):
            wrong.append(f"{where}: a bound of {bound} below log Z")
        for i, p in enumerate(answers.variables):
            values = p[b].double().numpy()
            if not (np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1) < 1e-6):
                wrong.append(f"{where}: no probabilities of variable {i}: {values}")
            elif status == "exact":
                worst = np.abs(values - truth.marginal(b, i, len(values))).max()
                if worst > TOLERANCE:
                    wrong.append(f"{where}: a probability of variable {i} is off by {worst:g}")
        if status == "exact":
            wrong += check_log_z(models, truth, b, log_z, where)
    return wrong


def check_log_z(models: Models, truth: Truth, b: int, value: float, where: str) -> list[str]:
    """Whether log Z is right to the tolerance, or to the precision that a float64 of its size has."""
    error = truth.log_z_error(models, b, value) if math.isfinite(value) else math.inf
    return [f"{where}: log Z is off by {error:g}"] if error > TOLERANCE + 2.0**-50 * abs(value) else []


def _below(models: Models, truth: Truth, b: int, bound: float) -> bool:
    best = int(truth.scores[b].max()) + models.constants[b]
    slack = TOLERANCE + 2.0**-50 * abs(bound)
    return float(Fraction(bound) - best * Fraction(float(models.units[b]))) < math.log(truth.weights[b].sum()) - slack


def check_best(models: Models, truth: Truth, b: int, count: int) -> list[str]:
    """The M best assignments of one model: distinct, in order, and none better is left out."""
    found, _ = best_assignments(models._model(b), count)
    place = {tuple(x): s for s, x in enumerate(truth.states.tolist())}
    chosen = [place[tuple(x)] for x in found.tolist()]
    values = truth.scores[b, chosen].tolist()
    ranked = sorted((int(v) for v in truth.scores[b] if v > _NEVER // 2), reverse=True)[:count]
    if len(set(chosen)) != len(chosen):
        return [f"model {b}: an assignment is there twice among the {count} best"]
    return [] if values == ranked else [f"model {b}: the {count} best score {values} instead of {ranked}"]


def check_samples(models: Models, truth: Truth, b: int, count: int, seed: int) -> list[str]:
    """Samples of one model: all feasible, and no state's frequency farther than six standard deviations away."""
    if not truth.feasible[b]:
        return []
    drawn = np.asarray(sample(models._model(b), count, seed=seed))
    place = {tuple(x): s for s, x in enumerate(truth.states.tolist())}
    chosen = np.array([place[tuple(x)] for x in drawn.tolist()])
    if (truth.scores[b, chosen] <= _NEVER // 2).any():
        return [f"model {b}: an infeasible sample"]
    p = truth.weights[b] / truth.weights[b].sum()
    shares = np.bincount(chosen, minlength=len(p)) / count
    far = np.abs(shares - p) > 6 * np.sqrt(p * (1 - p) / count) + 3 / count
    return [f"model {b}: {int(far.sum())} states are drawn too often or too rarely"] if far.any() else []


def check_crf(models: Models, truth: Truth, b: int) -> list[str]:
    """A CRF whose scores are those of one model: log-likelihoods sum to one, infeasible assignments have none."""
    if not truth.feasible[b] or float(models.units[b]) != 1.0 or models.constants[b]:
        return []
    model = models._model(b)
    scores = np.zeros((model.num_variables, max(models.structure.cards)))
    x = torch.from_numpy(truth.states)
    unary = torch.from_numpy(scores).expand(len(x), *scores.shape)
    crf = CRF(model, learn=None)
    value = crf.log_prob(x, unary).double().numpy()
    total = math.log(truth.weights[b].sum())
    best = int(truth.scores[b].max())
    own = np.where(truth.scores[b] > _NEVER // 2, truth.scores[b] - best - total, -np.inf)
    if ((own == -np.inf) != (value == -np.inf)).any():
        return [f"model {b}: the CRF gives an infeasible assignment a probability, or a feasible one none"]
    some = own > -np.inf
    worst = np.abs(value[some] - own[some]) / (1 + np.abs(own[some]))
    return [f"model {b}: a log-likelihood is off by {worst.max():g}"] if worst.max() > 1e-5 else []


# ---- running ----------------------------------------------------------------------------------------------------


def run_batch(seed: int, number: int, size: int) -> tuple[dict[str, int], list[str]]:
    """Draw one batch and check everything that is claimed of it; counts by claim, and faults."""
    rng = np.random.default_rng([seed, number, 7])
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    largest = min(LARGEST_INTEGER[dtype], int(2 ** rng.integers(2, 21)))
    models = draw_models(rng, draw_structure(rng), size, max(4, largest))
    if dtype != torch.float64:
        narrow = np.ldexp(1.0, rng.choice([0, -10, -40, 40], size=size).astype(np.int64))
        models = Models(models.structure, models.factors, models.bounds, [0] * size, narrow)
    truth, batch = Truth.of(models), models.batch(dtype)
    counts: dict[str, int] = {}
    faults: list[str] = []

    def tally(claim: str, checked: int, wrong: list[str]) -> None:
        counts[claim] = counts.get(claim, 0) + checked
        faults.extend(f"seed {seed}, batch {number}, {dtype}, {claim}: {text}" for text in wrong)

    for method in METHODS:
        answers = marginals(batch, method)
        claims = sum(s in ("exact", "infeasible") for s in answers.status)
        tally(f"marginals, {method}", claims, check_marginals(models, truth, answers))
    part = log_partition(batch, "exact")
    rows = [b for b in range(size) if truth.feasible[b] and bool(part.exact[b])]
    wrong = [w for b in rows for w in check_log_z(models, truth, b, float(part.value[b]), f"model {b}")]
    tally("log Z alone", len(rows), wrong)
    if dtype == torch.float64:
        few = range(min(size, 6))
        tally("M best", len(few), [w for b in few for w in check_best(models, truth, b, int(rng.integers(1, 12)))])
        tally("samples", len(few), [w for b in few for w in check_samples(models, truth, b, 400, number)])
        tally("CRF", len(few), [w for b in few for w in check_crf(models, truth, b)])
    return counts, faults


def _add(results: dict[str, Any], counts: dict[str, int]) -> None:
    claims = results.setdefault("claims", {})
    for claim, count in counts.items():
        claims[claim] = claims.get(claim, 0) + count


def check_many(
    models: int, *, seed: int = 0, size: int = 100, out: Path | None = None, seconds: float = math.inf
) -> dict[str, Any]:
    """Check at least ``models`` models, continuing from the results in ``out``; returns the results."""
    return check_batches(
        lambda number: run_batch(seed, number, size),
        _add,
        {"seed": seed, "size": size},
        models=models,
        command=f"python -m tools.check_probabilities --models {models} --seed {seed} --size {size}",
        out=out,
        seconds=seconds,
    )


def main() -> None:
    parser = arguments(__doc__, models=10_000, size=100, out="benchmarks/results/probabilities.json")
    options = parser.parse_args()
    results = check_many(options.models, seed=options.seed, size=options.size, out=options.out, seconds=options.seconds)
    print(f"{results['models']:,} models, {sum(results['claims'].values()):,} claims checked")
    report_faults(results)


if __name__ == "__main__":
    main()
