"""`decode`: words or syndromes in, the most probable words out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fgnn.decoding.belief import Beliefs, Rule, Schedule, Shots, propagate
from fgnn.decoding.code import Bits, Code
from fgnn.decoding.problem import Problem
from fgnn.errors import need
from fgnn.runtime.devices import check_device
from fgnn.runtime.nvrtc import can_compile

_NO_MEMORY = np.zeros((1, 1), np.float32)


@dataclass(frozen=True)
class Decoded:
    """The words of B shots.

    Attributes:
        words: The bits, or the errors of a circuit; none if they were not kept.  # shape: (B, bits)
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
        return len(self.converged)


def decode(
    problem: Problem | Code, received: ArrayLike, method: str = "min-sum", *, device: str | None = None,
    dtype: str = "float32", keep_words: bool = True, **options: Any,
) -> Decoded:  # fmt: skip
    """Decode a batch of shots.

    Args:
        problem: A code, or a problem with a prior and observables, such as `read_circuit` returns.
        received: For a code the log-likelihood ratios log P(0) / P(1) of every bit, shape (B, bits). For a problem the
            syndromes, shape (B, checks), or (B, detectors) with those that the problem leaves out.
        method: ``min-sum``, ``sum-product``, ``memory``, ``relay``, ``osd``, ``fgnn``, ``lp`` or ``exact``.
        device: ``cpu`` or ``cuda``; by default a GPU if there is one.
        dtype: ``float32`` or ``float64`` for messages on a CPU, ``float32`` or ``float16`` on a GPU.
        keep_words: Whether to return the words, which may be much longer than the observables they flip.
        options: Of the method; see its function in `METHODS`.

    Raises:
        ValueError: An unknown method or option, or an array of the wrong shape.
    """
    if method not in METHODS:
        raise ValueError(f"Expected one of the methods {', '.join(METHODS)} (got {method!r})")
    start = time.perf_counter()
    whole, shots = _inputs(problem, received, _device(device), dtype)
    beliefs = METHODS[method](whole, shots, **options)
    observables = None if whole.observables is None else _flips(whole, beliefs.words)
    words = (
        beliefs.words.cpu().numpy()
        if keep_words or observables is None
        else np.zeros((0, whole.code.num_bits), np.uint8)
    )
    converged, iterations = beliefs.converged.cpu().numpy(), beliefs.iterations.cpu().numpy()
    return Decoded(words, observables, converged, iterations, method, time.perf_counter() - start)


def _device(name: str | None) -> torch.device:
    """The device asked for; by default a GPU, if its kernel can be compiled."""
    if name is not None:
        return check_device(name)
    return torch.device("cuda" if can_compile() else "cpu")


def _flips(problem: Problem, words: Tensor) -> Bits:
    """The observables that errors flip, computed where the errors are."""
    if words.device.type == "cpu":
        return problem.flips(words.numpy())
    assert problem.observables is not None
    rows = torch.from_numpy(problem.observables.matrix().T).to(words.device, torch.float32)
    parts = [words[a : a + 8192].float() @ rows for a in range(0, len(words), 8192)]  # counts: exact, also in TF32
    total = torch.cat(parts)
    return np.asarray((total.round().int() & 1).to(torch.uint8).cpu().numpy())


def _inputs(problem: Problem | Code, received: ArrayLike, device: torch.device, dtype: str) -> tuple[Problem, Shots]:
    """The problem and the shots, checked."""
    allowed = ("float32", "float64") if device.type == "cpu" else ("float32", "float16")
    if dtype not in allowed:
        raise ValueError(f"Expected the dtype {' or '.join(allowed)} on this device (got {dtype!r})")
    values, kind = np.asarray(received), np.dtype("float64" if dtype == "float64" else "float32")
    if isinstance(problem, Code):
        if values.ndim != 2 or values.shape[1] != problem.num_bits or values.dtype.kind != "f":
            expected = f"Expected log-likelihood ratios of shape (B, {problem.num_bits})"
            raise ValueError(f"{expected} (got {values.dtype} of shape {values.shape})")
        if np.isnan(values).any():
            raise ValueError("Expected log-likelihood ratios (got NaN)")
        llr = np.clip(values, -1e4, 1e4).astype(kind)
        return Problem(problem, np.zeros(problem.num_bits)), Shots(llr, None, device, dtype == "float16")
    code = problem.code
    if problem.kept is not None and values.ndim == 2 and values.shape[1] == problem.detectors:
        values = values[:, problem.kept]
    if values.ndim != 2 or values.shape[1] != code.num_checks or values.dtype.kind not in "biu":
        expected = f"Expected syndromes of shape (B, {code.num_checks})"
        raise ValueError(f"{expected} (got {values.dtype} of shape {values.shape})")
    if values.dtype.kind != "b" and values.size and int(values.max()) > 1:
        raise ValueError("Expected syndromes of zeros and ones")
    syndromes = np.ascontiguousarray(values, np.uint8)
    return problem, Shots(problem.prior[None].astype(kind), syndromes, device, dtype == "float16")


def _plain(rule: Rule, iterations: int, scale: float, offset: float, schedule: str) -> Schedule:
    if schedule not in ("flooding", "layered"):
        raise ValueError(f"Expected the schedule flooding or layered (got {schedule!r})")
    return Schedule(rule, np.array([iterations]), _NO_MEMORY, scale, offset, layered=schedule == "layered")


def min_sum(
    problem: Problem, shots: Shots, *, iterations: int = 50, scale: float = 0.75,
    offset: float = 0.0, schedule: str = "flooding",
) -> Beliefs:  # fmt: skip
    """Min-sum belief propagation; ``scale=0`` stands for 1 - 2^-t at iteration t."""
    return propagate(problem.code, shots, _plain("min-sum", iterations, scale, offset, schedule))


def sum_product(problem: Problem, shots: Shots, *, iterations: int = 50, schedule: str = "flooding") -> Beliefs:
    """Sum-product belief propagation, with tanh."""
    return propagate(problem.code, shots, _plain("sum-product", iterations, 1.0, 0.0, schedule))


def memory(
    problem: Problem, shots: Shots, *, iterations: int = 200, gamma: float = 0.15,
    scale: float = 1.0,
) -> Beliefs:  # fmt: skip
    """Min-sum whose bits remember a share γ of their posterior."""
    schedule = Schedule("min-sum", np.array([iterations]), np.full((1, 1), gamma, np.float32), scale)
    return propagate(problem.code, shots, schedule)


def relay(
    problem: Problem, shots: Shots, *, legs: int = 300, first: int = 80,
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
    return propagate(problem.code, shots, schedule)


def osd(
    problem: Problem, shots: Shots, *, rule: Rule = "min-sum", iterations: int = 50,
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
    found = propagate(problem.code, shots, schedule, posterior=True)
    rest = (~found.converged).nonzero()[:, 0]
    if len(rest):
        rows = rest.cpu().numpy()
        wanted = np.zeros((len(rest), problem.code.num_checks), np.uint8)
        if shots.syndromes is not None:
            wanted = shots.syndromes[rows]
        priors = shots.llr if len(shots.llr) == 1 else shots.llr[rows]
        doubts = found.posterior[rest].cpu().numpy()
        words, solved = ordered_statistics(problem.code, priors, wanted, doubts, order)
        found.words[rest] = torch.from_numpy(words).to(found.words.device)
        found.converged[rest] = torch.from_numpy(solved).to(found.words.device)
    return found


def learned(problem: Problem, shots: Shots, *, weights: str = "", iterations: int | None = None) -> Beliefs:
    """A trained `LearnedDecoder`: ``weights`` is a file or the folder of a run; see ``fgnn train``.

    ``iterations`` are those it was trained with by default. With ``weights=""`` it is untrained: sum-product.
    """
    from fgnn.decoding.learned import load_decoder, run_decoder
    from fgnn.decoding.tanner import Tanner

    network, trained = load_decoder(weights, shots.device)
    count = trained if iterations is None else iterations
    if count < 1:
        raise ValueError(f"Expected at least one iteration (got {count})")
    llr = torch.from_numpy(shots.llr.astype(np.float32)).to(shots.device).expand(len(shots), -1)
    syndromes = llr.new_zeros(len(shots), problem.code.num_checks)
    if shots.syndromes is not None:
        syndromes = torch.from_numpy(shots.syndromes).to(llr)
    tanner = Tanner.of(problem.code, turns=network.size.turns, device=shots.device)
    found = run_decoder(network, tanner, llr, syndromes, count)
    return Beliefs((found.post < 0).to(torch.uint8), found.post, found.iterations, found.converged)


def exact(problem: Problem, shots: Shots, *, time_limit: float | None = None) -> Beliefs:
    """The most probable word of each shot, by `fgnn.infer`'s elimination: short codes only."""
    return _by_model(problem, shots, "exact", time_limit)


def linear_programme(problem: Problem, shots: Shots, *, time_limit: float | None = None) -> Beliefs:
    """The linear programme over the parity polytopes, by AD3; words that it leaves fractional are rounded."""
    return _by_model(problem, shots, "ad3", time_limit)


def _by_model(problem: Problem, shots: Shots, method: str, time_limit: float | None) -> Beliefs:
    from fgnn.infer import solve

    words = np.zeros((len(shots), problem.code.num_bits), np.uint8)
    wanted = shots.syndromes
    if wanted is None:
        wanted = np.zeros((len(shots), problem.code.num_checks), np.uint8)
    for k, syndrome in enumerate(wanted):
        model = problem.model(syndrome, shots.llr[k if len(shots.llr) > 1 else 0])
        words[k] = np.asarray(solve(model, method, time_limit=time_limit).assignment)
    ok = (problem.code.syndrome(words) == wanted).all(1)
    none = torch.zeros(0, problem.code.num_bits)
    return Beliefs(torch.from_numpy(words), none, torch.zeros(len(shots), dtype=torch.int64), torch.from_numpy(ok))


METHODS: dict[str, Callable[..., Beliefs]] = {
    "min-sum": min_sum,
    "sum-product": sum_product,
    "memory": memory,
    "relay": relay,
    "osd": osd,
    "fgnn": learned,
    "lp": linear_programme,
    "exact": exact,
}
