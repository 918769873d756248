"""`best_assignments`: the M assignments of highest score, in order, by elimination."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.exact.run import run_plan
from fgnn.infer.exact.solver import exact_plan
from fgnn.infer.lowered import counts
from fgnn.infer.magnitude import check_magnitude
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.pgm.lowering import lower


def best_assignments(
    model: GraphicalModel, count: int, **options: Any
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the M best assignments (Lawler's partition).

    The feasible assignments other than the best split into N disjoint sets: set i agrees with the best on the variables
    before i and differs at i. The best of each set is a candidate, and the next assignment is the best candidate, whose
    set is split in the same way. All sets of a split are solved as one batch with one plan.

    Args:
        model: The model.
        count: M; fewer are returned if the model has fewer feasible assignments.
        options: Of elimination: ``max_states``, ``memory``, ``tries``, ``seed``.

    Returns:
        Assignments (M, N) in descending order of score, and their scores (M,).

    Raises:
        TooLarge: A `ValueError`: elimination needs more states or memory than allowed.
    """
    if count < 0:
        raise ValueError(f"Expected a number of assignments (got {count})")
    batch = ModelBatch.stack([model])
    check_magnitude(batch)
    batch = lower(batch, keep=counts).batch
    plan = exact_plan(batch, **options)
    n = model.num_variables
    found: list[NDArray[np.int64]] = []
    scores: list[float] = []
    # By score: the assignment, how many of its first variables its set fixes, and the states its set forbids after.
    heap: list[tuple[float, int, NDArray[np.int64], int, NDArray[np.bool_]]] = []
    ticket = 0  # breaks ties, in the order in which candidates were found

    def push(fixed: NDArray[np.int64], allowed: NDArray[np.bool_]) -> None:
        """Solve the sets with these allowed states (S, N, K), which fix the first ``fixed`` (S,) variables."""
        nonlocal ticket
        if plan.steps is None or not len(allowed):
            return
        sets = batch.repeat(len(allowed))
        unary = sets.unary.masked_fill(~torch.from_numpy(allowed), -torch.inf)
        assignments, _ = run_plan(plan, replace(sets, unary=unary), torch.float64)
        inside = np.take_along_axis(allowed, assignments.numpy()[..., None], 2).all((1, 2))
        assignments = assignments[:, :n]
        values = np.atleast_1d(model.score(assignments.numpy()))
        for s in np.flatnonzero(np.isfinite(values) & inside).tolist():
            ticket += 1
            heapq.heappush(heap, (-values[s], ticket, assignments[s].numpy(), int(fixed[s]), allowed[s]))

    push(np.zeros(1, dtype=np.int64), batch.state_mask.numpy()[None])
    while heap and len(found) < count:
        value, _, best, fixed, allowed = heapq.heappop(heap)
        found.append(best)
        scores.append(-value)
        sets = np.repeat(allowed[None], n - fixed, axis=0)
        for s in range(n - fixed):
            sets[s, np.arange(fixed, fixed + s), :] = False
            sets[s, np.arange(fixed, fixed + s), best[fixed : fixed + s]] = True
            sets[s, fixed + s, best[fixed + s]] = False
        following = np.arange(fixed, n)
        some = sets[following - fixed, following].any(1)  # a set without states for its variable is empty
        push(following[some], sets[some])
    return np.array(found, dtype=np.int64).reshape(-1, n), np.array(scores)
