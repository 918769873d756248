"""Split the detectors of a CSS circuit by basis.

A bit flip is seen by one kind of detector, a phase flip by the other, and an error of both kinds is the product of the
two. Detectors that are linked only by such products can be decoded apart; the observables depend on one part.

Near the boundary of a small code two errors of the same kind may look like such a product. Then there are more parts
than two, or parts of one detector, and nothing is split.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from fgnn.decoding.code import Code
from fgnn.decoding.problem import Problem


def one_basis(problem: Problem) -> Problem:
    """Keep the detectors that the observables depend on, and merge the errors that become equal.

    A problem that does not split is returned as it is.
    """
    code, observables = problem.code, problem.observables
    if observables is None or not observables.num_edges:
        return problem
    starts, edges = code.by_bit
    columns = [code.checks[edges[a:b]] for a, b in pairwise(starts)]
    part = _parts(columns, code.num_checks)
    sizes = np.bincount(part[np.unique(code.checks)])  # without detectors that never fire
    if len(sizes[sizes > 0]) != 2 or sizes[sizes > 0].min() < 2:
        return problem
    flips = np.unique(observables.bits)
    simple = [column for i in flips if len(column := columns[i]) and len(np.unique(part[column])) == 1]
    kept = np.flatnonzero(np.isin(part, np.unique(np.concatenate([part[c] for c in simple] or [part]))))
    if len(kept) == code.num_checks:
        return problem
    return _restrict(problem, kept)


def _parts(columns: list[NDArray[np.int64]], checks: int) -> NDArray[np.int64]:
    """Components of the detectors, linked by the errors that are no product of two others with disjoint symptoms."""
    known = {frozenset(column.tolist()) for column in columns}
    by_check: list[list[frozenset[int]]] = [[] for _ in range(checks)]
    for symptom in known:
        for c in symptom:
            by_check[c].append(symptom)
    links: list[tuple[int, int]] = []
    for symptom in known:
        if len(symptom) < 2:
            continue
        first = min(symptom)
        # one of the two has the first detector
        if not any(other < symptom and symptom - other in known for other in by_check[first]):
            links += [(first, c) for c in symptom]
    pairs = np.array(links, np.int64).reshape(-1, 2)
    graph = coo_matrix((np.ones(len(pairs), np.int8), (pairs[:, 0], pairs[:, 1])), (checks, checks))
    return np.asarray(connected_components(graph, directed=False)[1], np.int64)


def _restrict(problem: Problem, kept: NDArray[np.int64]) -> Problem:
    """Forget the other detectors, and merge errors that can no longer be told apart."""
    code, observables = problem.code, problem.observables
    assert observables is not None
    inside = np.full(code.num_checks, -1)
    inside[kept] = np.arange(len(kept))
    checks: list[list[int]] = [[] for _ in range(code.num_bits)]
    flips: list[list[int]] = [[] for _ in range(code.num_bits)]
    for c, i in zip(inside[code.checks].tolist(), code.bits.tolist(), strict=True):
        if c >= 0:
            checks[i].append(c)
    for c, i in zip(observables.checks.tolist(), observables.bits.tolist(), strict=True):
        flips[i].append(c)
    probability: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for i, p in enumerate((1 / (1 + np.exp(problem.prior))).tolist()):
        key = tuple(checks[i]), tuple(flips[i])
        before = probability.get(key, 0.0)
        probability[key] = before * (1 - p) + p * (1 - before)
    keys = [key for key in probability if key[0]]
    p = np.array([probability[key] for key in keys])
    small = Code.of_columns([key[0] for key in keys], len(kept))
    outcome = Code.of_columns([key[1] for key in keys], observables.num_checks)
    return Problem(small, np.log1p(-p) - np.log(p), outcome, kept, code.num_checks)
