"""Check a kind of factor against its table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fgnn.infer import best_assignments, log_partition, marginals, sample, solve
from fgnn.pgm import GraphicalModel, Kind, ModelBatch, StructuredFactor, read_model, write_model
from fgnn.pgm.factors.gadget import table_values
from fgnn.pgm.factors.kind import LackingPart

_TOLERANCE = 1e-9
_RELAXED = 1e-3  # bounds of `ad3`, relative to the range of the factors
Compare = Callable[[GraphicalModel, GraphicalModel], None]


def check_factor(
    kind: Kind, shape: Sequence[int], *, trials: int = 3, seed: int = 0, **numbers: ArrayLike
) -> list[str]:
    """Check that every method gives for a factor what it gives for its table, on small random models.

    First the parts of the kind are compared with the table: messages in both semirings, the best joint state, linear
    constraints, the sum that it counts. The models have a factor over variables of the cardinalities ``shape``, random
    unaries, and tables that join these variables to another. Scores of all assignments, files, optima, bounds, beliefs,
    marginals, log Z and samples are compared, by every method of `solve` and `marginals`.

    Args:
        kind: The kind; it must be in ``fgnn.pgm.KINDS`` for its file to be read.
        shape: The cardinalities of its variables; the table must be small enough to be written out.
        trials: How many models to draw.
        seed: Seeds the models.
        numbers: Those of one factor.

    Returns:
        The checks that were left out, because the kind lacks the part they need or a package is not installed.

    Raises:
        AssertionError: At the first check that fails; the message names it and the trial.

    Example:
        >>> from fgnn.pgm.factors import Parity
        >>> fgnn.testing.check_factor(Parity(), (2, 2, 2, 2), value=1)
        []
    """
    if len(shape) < 2:
        raise ValueError(f"Expected a factor over two or more variables, as tables are (got {len(shape)})")
    arrays = {name: np.asarray(value) for name, value in numbers.items()}
    factor = StructuredFactor(kind, tuple(range(len(shape))), tuple(shape), arrays)
    left_out: list[str] = []
    rng = np.random.default_rng(seed)
    for trial in range(trials):
        checks: dict[str, Callable[[], None]] = {name: partial(check, factor, rng) for name, check in PARTS.items()}
        models = _models(rng, factor)
        checks |= {name: partial(compare, *models) for name, compare in CHECKS.items()}
        for name, check in checks.items():
            if name == "toulbar2" and find_spec("pytoulbar2") is None:
                left_out.append(name)
                continue
            try:
                check()
            except LackingPart:
                left_out.append(name)
            except AssertionError as error:
                raise AssertionError(f"{name} of {kind.name} in trial {trial} with seed {seed}: {error}") from error
    return sorted(set(left_out))


def _models(rng: np.random.Generator, factor: StructuredFactor) -> tuple[GraphicalModel, GraphicalModel]:
    """A random model with the factor, and the same with its table."""
    kind, shape = factor.kind, factor.shape
    scope = rng.permutation(len(shape))
    cards = [*np.array(shape)[np.argsort(scope)].tolist(), 3]
    unaries = rng.normal(size=sum(cards))
    pairs = [(int(i), len(shape)) for i in rng.permutation(len(shape))[:2]]
    tables = [rng.normal(size=(cards[i], cards[j])) for i, j in pairs]
    models = []
    for expand in (False, True):
        model = GraphicalModel(cards)
        model.add_unaries(unaries)
        for pair, table in zip(pairs, tables, strict=True):
            model.add_table(pair, table)
        if expand:
            model.add_table(scope.tolist(), factor.as_table())
        else:
            model.add_factors(kind, [scope], **{name: value[None] for name, value in factor.numbers.items()})
        models.append(model)
    return models[0], models[1]


def _check(holds: Any, what: str, own: Any, other: Any) -> None:
    if not bool(np.all(holds)):
        raise AssertionError(f"Expected {what} {other} of the table (got {own})")


def _close(own: Any, other: Any, what: str, tolerance: float = _TOLERANCE) -> None:
    a, b = np.asarray(own, dtype=np.float64), np.asarray(other, dtype=np.float64)
    _check(np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True), what, own, other)


# ---- the parts of a kind --------------------------------------------------------------------------------------


def _potentials(factor: StructuredFactor) -> Tensor:
    """Of the factor alone.  # shape: (1, S)"""
    numbers = {name: torch.as_tensor(v)[None, None] for name, v in factor.numbers.items()}
    return factor.kind.potentials(factor.shape, numbers)[0].double()


def _incoming(factor: StructuredFactor, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Messages of variables to ``count`` such factors, (count, n, K); all but the first forbid a state."""
    nu = np.full((count, len(factor.shape), max(factor.shape)), -np.inf)
    for a, k in enumerate(factor.shape):
        nu[:, a, :k] = rng.normal(size=(count, k))
    nu[1:, 0, 0] = -np.inf
    return nu


def _joint(factor: StructuredFactor, nu: NDArray[np.float64], without: int | None = None) -> NDArray[np.float64]:
    """The table plus the messages (n, K) of all variables, or of all but one."""
    joint = factor.as_table()
    for a, k in enumerate(factor.shape):
        if a != without:
            joint = joint + nu[a, :k].reshape(k, *(1 for _ in factor.shape[a + 1 :]))
    return joint


def _messages(factor: StructuredFactor, rng: np.random.Generator) -> None:
    theta, given = _potentials(factor).T[..., None], _incoming(factor, rng, 3)
    nu = [torch.from_numpy(given[:, a, :k].T.copy())[:, None] for a, k in enumerate(factor.shape)]  # shape: (k, 1, B)
    for total in (False, True):
        sent = factor.kind.messages(theta, nu, total=total)
        for b, a in np.ndindex(3, len(factor.shape)):
            rows = np.moveaxis(_joint(factor, given[b], without=a), a, 0).reshape(factor.shape[a], -1)
            expected = np.logaddexp.reduce(rows, 1) if total else rows.max(1)
            _close(sent[a][:, 0, b], expected, f"the {'sums' if total else 'maxima'} to variable {a}")
        if set(factor.shape) == {2} and all(bool(m[..., 0].isfinite().all()) for m in sent):
            given_ratios, expected_ratios = (torch.stack([m[1] - m[0] for m in ms])[..., :1] for ms in (nu, sent))
            _close(factor.kind.ratios(theta, given_ratios, total=total), expected_ratios, "the ratios")


def _best_joint_state(factor: StructuredFactor, rng: np.random.Generator) -> None:
    given = _incoming(factor, rng, 4)
    value, x = factor.kind.best(factor.shape, _potentials(factor).expand(4, -1), torch.from_numpy(given))
    for p in range(4):
        joint = _joint(factor, given[p])
        _close(value[p], joint.max(), "the value of the best joint state")
        if joint.max() > -np.inf:
            _close(joint[tuple(x[p].tolist())], joint.max(), "the best joint state")


def _rows(factor: StructuredFactor, rng: np.random.Generator) -> None:
    if factor.kind.has("rows"):
        allowed, rows = factor.as_table() > -np.inf, factor.kind.rows(factor.shape)
        for x in np.ndindex(*factor.shape):
            sums = [sum(w[x[a]] for a, w in zip(row.positions, row.weights, strict=True)) for row in rows]
            kept = all(row.at_least <= total <= row.at_most for row, total in zip(rows, sums, strict=True))
            _check(kept == allowed[x], f"linear constraints that, at {x}, hold as", kept, allowed[x])


def _counter(factor: StructuredFactor, rng: np.random.Generator) -> None:
    counter = factor.kind.counter(factor.shape)
    if counter is not None:
        by_sum = table_values(torch.as_tensor(counter.entries), _potentials(factor)[None], torch.float64)[0, 0]
        cells = np.indices(factor.shape).reshape(len(factor.shape), -1).T
        _close(by_sum.numpy()[counter.sums(cells)], factor.as_table().reshape(-1), "the log-potentials by sum")


PARTS: dict[str, Callable[[StructuredFactor, np.random.Generator], None]] = {
    "messages": _messages,
    "best joint state": _best_joint_state,
    "linear constraints": _rows,
    "counter": _counter,
}


# ---- the methods ----------------------------------------------------------------------------------------------


def _score(own: GraphicalModel, other: GraphicalModel) -> None:
    cells = np.indices(tuple(own.cardinalities)).reshape(own.num_variables, -1).T
    _close(own.score(cells), other.score(cells), "scores")
    batch = ModelBatch.stack([own, own])
    x = torch.from_numpy(np.ascontiguousarray(cells)).expand(2, -1, -1)
    _close(batch.score(x)[1], other.score(cells), "scores of a batch")


def _file(own: GraphicalModel, other: GraphicalModel) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fgm"
        write_model(own, path)
        again = read_model(path)
    _check(again == own, "the same model from a file, as", again, own)


def _optimum(method: str, **options: Any) -> Compare:
    def compare(own: GraphicalModel, other: GraphicalModel) -> None:
        a, b = solve(own, method, **options), solve(other, "brute-force")
        _check(a.status == b.status, "the status", a.status, b.status)
        _close(a.score, b.score, "the optimum")

    return compare


def _bound(method: str, tolerance: float) -> Compare:
    def compare(own: GraphicalModel, other: GraphicalModel) -> None:
        _close(solve(own, method).bound, solve(other, method).bound, "the bound", tolerance)

    return compare


def _beliefs(**options: Any) -> Compare:
    def compare(own: GraphicalModel, other: GraphicalModel) -> None:
        a, b = (solve(m, "max-product", keep_beliefs=True, **options).info["beliefs"] for m in (own, other))
        _close(a, b, "the beliefs")

    return compare


def _marginals(method: str) -> Compare:
    def compare(own: GraphicalModel, other: GraphicalModel) -> None:
        a, b = marginals(own, method), marginals(other, method)
        _close(a.log_partition, b.log_partition, "log Z")
        for p, q in zip(a.variables, b.variables, strict=True):
            _close(p, q, "the marginals")
        _close(log_partition(own, method).value, b.log_partition, "log Z alone")

    return compare


def _above_optimum(method: str) -> Compare:
    def compare(own: GraphicalModel, other: GraphicalModel) -> None:
        bound, score = solve(own, method).bound, solve(other, "brute-force").score
        _check(bound >= score - _TOLERANCE * (1 + abs(score)), "a bound above the optimum", bound, score)

    return compare


def _below_optimum(method: str, **options: Any) -> Compare:
    def compare(own: GraphicalModel, other: GraphicalModel) -> None:
        a, b = solve(own, method, **options), solve(other, "brute-force")
        _close(a.score, other.score(np.asarray(a.assignment)), "the score")
        _check(a.score <= b.score + _TOLERANCE, "a score up to the optimum", a.score, b.score)

    return compare


def _above_log_z(method: str) -> Compare:
    def compare(own: GraphicalModel, other: GraphicalModel) -> None:
        bound, log_z = marginals(own, method).bound, log_partition(other, "brute-force").value
        _check(bound >= log_z - _TOLERANCE * (1 + abs(log_z)), "a bound above log Z", bound, log_z)

    return compare


def _best_assignments(own: GraphicalModel, other: GraphicalModel) -> None:
    a, b = (best_assignments(model, 4)[1] for model in (own, other))
    _check(len(a) == len(b), "as many best assignments, of scores", a, b)
    _close(a, b, "the best scores")


def _sample(own: GraphicalModel, other: GraphicalModel) -> None:
    if np.isfinite(log_partition(other).value):
        scores = own.score(np.asarray(sample(own, 8)))
        _check(np.isfinite(scores), "feasible samples, as", scores, "those")


CHECKS: dict[str, Compare] = {
    "score": _score,
    "file": _file,
    "brute-force": _optimum("brute-force"),
    "exact": _optimum("exact"),
    "toulbar2": _optimum("toulbar2"),
    "auto": _optimum("auto"),
    "lp": _bound("lp", 1e-6),
    "ad3": _bound("ad3", _RELAXED),
    "ad3, branch and bound": _optimum("ad3", branch_and_bound=True),
    "dual": _above_optimum("dual"),
    "search": _below_optimum("search", rounds=2),
    "best assignments": _best_assignments,
    "max-product": _beliefs(iterations=20),
    "max-product, not normalised": _beliefs(iterations=5, normalise=False, damping=0.0),
    "marginals": _marginals("exact"),
    "sum-product": _marginals("sum-product"),
    "marginals, auto": _marginals("auto"),
    "trw": _above_log_z("trw"),
    "mini-bucket": _above_log_z("mini-bucket"),
    "sample": _sample,
}
