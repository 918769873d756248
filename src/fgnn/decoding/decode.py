"""`decode`: words or syndromes in, the most probable words out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fgnn.decoding.belief import Beliefs, Rule, Schedule, propagate
from fgnn.decoding.code import Bits, Code
from fgnn.decoding.problem import Problem
from fgnn.errors import need

_NO_MEMORY = np.zeros((1, 1), np.float32)


@dataclass(frozen=True)
class Decoded:
    """The words of B shots.

    Attributes:
        words: The bits, or the errors of a circuit.  # shape: (B, bits)
        observables: What the errors flip; None for a code.  # shape: (B, observables)
        converged: Whether the word has its syndrome.  # shape: (B,)
        iterations: Of belief propagation; 0 for methods without.  # shape: (B,)
        method: The method's name.
        seconds: Wall time.
    """

    words: Bits
    observables: Bits | None
    converged: NDArray[np.bool_]
    iterations: NDArray[np.int64]
    method: str
    seconds: float

    def __len__(self) -> int:
        return len(self.words)


def decode(
    problem: Problem | Code, received: ArrayLike, method: str = "min-sum", *, dtype: str = "float32", **options: Any
) -> Decoded:
    """Decode a batch of shots.

    Args:
        problem: A code, or a problem with a prior and observables, such as `read_circuit` returns.
        received: For a code the log-likelihood ratios log P(0) / P(1) of every bit, shape (B, bits). For a problem the
            syndromes, shape (B, checks), or (B, detectors) with those that the problem leaves out.
        method: ``min-sum``, ``sum-product``, ``memory``, ``relay``, ``osd``, ``lp`` or ``exact``.
        dtype: ``float32`` or ``float64`` for messages.
        options: Of the method; see its function in `METHODS`.

    Raises:
        ValueError: An unknown method or option, or an array of the wrong shape.
    """
    if method not in METHODS:
        raise ValueError(f"Expected one of the methods {', '.join(METHODS)} (got {method!r})")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"Expected the dtype float32 or float64 (got {dtype!r})")
    start = time.perf_counter()
    whole, llr, syndromes = _inputs(problem, received, np.dtype(dtype))
    beliefs = METHODS[method](whole, llr, syndromes, **options)
    observables = whole.flips(beliefs.words) if whole.observables is not None else None
    seconds = time.perf_counter() - start
    return Decoded(beliefs.words, observables, beliefs.converged, beliefs.iterations, method, seconds)


def _inputs(problem: Problem | Code, received: ArrayLike, dtype: Any) -> tuple[Problem, NDArray[Any], Bits | None]:
    """The problem, the priors and the syndromes; None stands for zeros."""
    values = np.asarray(received)
    if isinstance(problem, Code):
        if values.ndim != 2 or values.shape[1] != problem.num_bits or values.dtype.kind != "f":
            expected = f"Expected log-likelihood ratios of shape (B, {problem.num_bits})"
            raise ValueError(f"{expected} (got {values.dtype} of shape {values.shape})")
        if np.isnan(values).any():
            raise ValueError("Expected log-likelihood ratios (got NaN)")
        llr = np.clip(values, -1e4, 1e4).astype(dtype)
        return Problem(problem, np.zeros(problem.num_bits)), llr, None
    code = problem.code
    if problem.kept is not None and values.ndim == 2 and values.shape[1] == problem.detectors:
        values = values[:, problem.kept]
    if values.ndim != 2 or values.shape[1] != code.num_checks or values.dtype.kind not in "biu":
        expected = f"Expected syndromes of shape (B, {code.num_checks})"
        raise ValueError(f"{expected} (got {values.dtype} of shape {values.shape})")
    if values.dtype.kind != "b" and not np.isin(values, (0, 1)).all():
        raise ValueError("Expected syndromes of zeros and ones")
    return problem, problem.prior[None].astype(dtype), values.astype(np.uint8)


def _plain(rule: Rule, iterations: int, scale: float, offset: float, schedule: str) -> Schedule:
    if schedule not in ("flooding", "layered"):
        raise ValueError(f"Expected the schedule flooding or layered (got {schedule!r})")
    return Schedule(rule, np.array([iterations]), _NO_MEMORY, scale, offset, layered=schedule == "layered")


def min_sum(
    problem: Problem, llr: NDArray[Any], syndromes: Bits | None, *, iterations: int = 50, scale: float = 0.75,
    offset: float = 0.0, schedule: str = "flooding",
) -> Beliefs:  # fmt: skip
    """Min-sum belief propagation; ``scale=0`` stands for 1 - 2^-t at iteration t."""
    return propagate(problem.code, llr, syndromes, _plain("min-sum", iterations, scale, offset, schedule))


def sum_product(
    problem: Problem, llr: NDArray[Any], syndromes: Bits | None, *, iterations: int = 50, schedule: str = "flooding"
) -> Beliefs:
    """Sum-product belief propagation, with tanh."""
    return propagate(problem.code, llr, syndromes, _plain("sum-product", iterations, 1.0, 0.0, schedule))


def memory(
    problem: Problem, llr: NDArray[Any], syndromes: Bits | None, *, iterations: int = 200, gamma: float = 0.15,
    scale: float = 1.0,
) -> Beliefs:  # fmt: skip
    """Min-sum whose bits remember a share γ of their posterior."""
    schedule = Schedule("min-sum", np.array([iterations]), np.full((1, 1), gamma, np.float32), scale)
    return propagate(problem.code, llr, syndromes, schedule)


def relay(
    problem: Problem, llr: NDArray[Any], syndromes: Bits | None, *, legs: int = 300, first: int = 80,
    iterations: int = 60, gamma: float = 0.125, low: float = -0.24, high: float = 0.66, solutions: int = 5,
    scale: float = 1.0, seed: int = 0,
) -> Beliefs:  # fmt: skip
    """Relay belief propagation (Müller et al. 2025): legs with random memories, until ``solutions`` have succeeded.

    The first leg has ``first`` iterations and the memory ``gamma``; the others have ``iterations`` and memories drawn
    between ``low`` and ``high``, negative ones included.
    """
    if legs < 0 or not low <= high:
        raise ValueError(f"Expected legs >= 0 and low <= high (got {legs}, {low}, {high})")
    draw = np.random.default_rng(seed).uniform(low, high, (legs, problem.code.num_bits))
    gammas = np.concatenate([np.full((1, problem.code.num_bits), gamma), draw]).astype(np.float32)
    lengths = np.array([first] + [iterations] * legs)
    schedule = Schedule("min-sum", lengths, gammas, scale, solutions=solutions)
    return propagate(problem.code, llr, syndromes, schedule)


def osd(
    problem: Problem, llr: NDArray[Any], syndromes: Bits | None, *, rule: Rule = "min-sum", iterations: int = 50,
    scale: float = 0.0, order: int | None = 10,
) -> Beliefs:  # fmt: skip
    """Belief propagation, then ordered statistics where it failed.

    ``order`` is the number of bits whose pairs are tried (combination sweep); None solves once (OSD-0).
    """
    need("numba")
    from fgnn.decoding.osd import ordered_statistics

    if order is not None and not 0 <= order <= 1000:
        raise ValueError(f"Expected an order from 0 to 1000 (got {order})")
    schedule = _plain(rule, iterations, scale if rule == "min-sum" else 1.0, 0.0, "flooding")
    found = propagate(problem.code, llr, syndromes, schedule, posterior=True)
    rest = np.flatnonzero(~found.converged)
    if len(rest):
        shape = (len(rest), problem.code.num_checks)
        wanted = np.zeros(shape, np.uint8) if syndromes is None else syndromes[rest]
        priors = llr if len(llr) == 1 else llr[rest]
        found.words[rest], found.converged[rest] = ordered_statistics(
            problem.code, priors, wanted, found.posterior[rest], order
        )
    return found


def exact(problem: Problem, llr: NDArray[Any], syndromes: Bits | None, *, time_limit: float | None = None) -> Beliefs:
    """The most probable word of each shot, by `fgnn.infer`'s elimination: short codes only."""
    return _by_model(problem, llr, syndromes, "exact", time_limit)


def linear_programme(
    problem: Problem, llr: NDArray[Any], syndromes: Bits | None, *, time_limit: float | None = None
) -> Beliefs:
    """The linear programme over the parity polytopes, by AD3; words that it leaves fractional are rounded."""
    return _by_model(problem, llr, syndromes, "ad3", time_limit)


def _by_model(
    problem: Problem, llr: NDArray[Any], syndromes: Bits | None, method: str, time_limit: float | None
) -> Beliefs:
    from fgnn.infer import solve

    shots = len(llr) if syndromes is None else len(syndromes)
    words = np.zeros((shots, problem.code.num_bits), np.uint8)
    iterations = np.zeros(shots, np.int64)
    for shot in range(shots):
        model = problem.model(None if syndromes is None else syndromes[shot], llr[shot if len(llr) > 1 else 0])
        solution = solve(model, method, time_limit=time_limit)
        words[shot], iterations[shot] = np.asarray(solution.assignment), solution.iterations or 0
    wanted = np.zeros((shots, problem.code.num_checks), np.uint8) if syndromes is None else syndromes
    ok = (problem.code.syndrome(words) == wanted).all(1)
    return Beliefs(words, np.zeros((0, problem.code.num_bits)), iterations, ok)


METHODS: dict[str, Callable[..., Beliefs]] = {
    "min-sum": min_sum,
    "sum-product": sum_product,
    "memory": memory,
    "relay": relay,
    "osd": osd,
    "lp": linear_programme,
    "exact": exact,
}
