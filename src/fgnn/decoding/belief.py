"""Belief propagation over parity checks: the schedule, and the engine that runs it on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.decoding.code import Bits, Code
from fgnn.errors import need
from fgnn.infer.threads import side_by_side

Rule = Literal["min-sum", "sum-product"]


@dataclass(frozen=True)
class Schedule:
    """How messages are computed, in which order, and when a shot is done.

    Iteration t of a leg, for every check c and bit i, with the prior λ_i and the syndrome s_c:

        q_ic = M_i - r_ci,   r_ci = α (-1)^s_c Π_j sign(q_jc) min_j |q_jc|  over the other bits j of c   (min-sum),
        Λ_i = (1 - γ_i) λ_i + γ_i M_i,   M_i = Λ_i + Σ_c r_ci,   x_i = [M_i < 0].

    γ = 0 is plain belief propagation; another γ gives a bit memory of its posterior. A *leg* ends when x explains the
    syndrome or after its iterations. The next leg has other γ, starts its messages anew, and remembers the posteriors
    of the one before: relay BP (Müller et al. 2025). The best of ``solutions`` words that were found is the answer.

    Attributes:
        rule: How a check combines messages.
        lengths: Iterations of each leg.
        gammas: γ of each leg, one for all bits or one for each.  # shape: (legs, 1 or bits)
        scale: α; 0 stands for 1 - 2^-t.
        offset: Subtracted from every minimum.
        solutions: Legs that must succeed before a shot is done.
        layered: Update the posteriors after every check instead of after all; without memory only.
    """

    rule: Rule
    lengths: NDArray[np.int64]
    gammas: NDArray[np.float32]
    scale: float = 1.0
    offset: float = 0.0
    solutions: int = 1
    layered: bool = False

    def __post_init__(self) -> None:
        if self.rule not in ("min-sum", "sum-product"):
            raise ValueError(f"Expected the rule min-sum or sum-product (got {self.rule!r})")
        if self.layered and np.any(self.gammas):
            raise ValueError("Expected no memory with the layered schedule")
        if not (0 <= self.scale <= 10 and 0 <= self.offset < np.inf):
            raise ValueError(
                f"Expected a scale from 0 to 10 and an offset of at least 0 (got {self.scale}, {self.offset})"
            )
        if not len(self.lengths) or self.lengths.min() < 1 or self.solutions < 1:
            raise ValueError("Expected at least one leg, one iteration in each and one solution")


@dataclass(frozen=True)
class Shots:
    """What was received, and where it is decoded.

    Attributes:
        llr: Priors of each shot, or one row for all.  # shape: (1 or B, bits)
        syndromes: Of every shot; None for zeros.  # shape: (B, checks)
        device: A CPU, or a GPU with kernels.
        half: Keep messages in float16; on a GPU only.
    """

    llr: NDArray[Any]
    syndromes: Bits | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    half: bool = False

    def __len__(self) -> int:
        return len(self.llr) if self.syndromes is None else len(self.syndromes)


@dataclass(frozen=True)
class Beliefs:
    """What belief propagation left of every shot, where it ran.

    Attributes:
        words: The word found, or the last one, uint8.  # shape: (B, bits)
        posterior: Log-likelihood ratios after the last iteration, if they were asked for.  # shape: (B or 0, bits)
        iterations: Over all legs.  # shape: (B,)
        converged: Whether the word has the syndrome.  # shape: (B,)
    """

    words: Tensor
    posterior: Tensor
    iterations: Tensor
    converged: Tensor


def propagate(code: Code, shots: Shots, schedule: Schedule, *, posterior: bool = False) -> Beliefs:
    """Run belief propagation on every shot; ``posterior`` keeps the posteriors."""
    if shots.device.type == "cuda":
        from fgnn.decoding.shots import decode_on

        llr = torch.from_numpy(shots.llr).to(shots.device)
        syndromes = None if shots.syndromes is None else torch.from_numpy(shots.syndromes).to(shots.device)
        return Beliefs(*decode_on(code, llr, syndromes, schedule, posterior=posterior, half=shots.half))
    return _in_lanes(code, shots, schedule, posterior)


def _in_lanes(code: Code, shots: Shots, schedule: Schedule, posterior: bool) -> Beliefs:
    need("numba")
    from fgnn.decoding.lanes import Graph, Results, Task, decode_shots

    count, n, llr = len(shots), code.num_bits, np.ascontiguousarray(shots.llr)
    none = np.zeros((0, code.num_checks), np.uint8)
    kind, stop = llr.dtype.type, np.zeros(1, np.uint8)
    task = Task(
        llr, none if shots.syndromes is None else np.ascontiguousarray(shots.syndromes),
        schedule.gammas.astype(llr.dtype), schedule.lengths, schedule.rule == "sum-product", kind(schedule.scale),
        kind(schedule.offset), schedule.solutions, schedule.layered,
        kind(1 - 1e-7 if llr.dtype == np.float32 else 1 - 1e-15), stop,
    )  # fmt: skip
    graph = Graph(code.starts, code.bits, *code.by_bit)
    results = Results(
        np.zeros((count, n), np.uint8), np.zeros((count if posterior else 0, n), llr.dtype),
        np.zeros(count, np.int64), np.zeros(count, np.bool_),
    )  # fmt: skip
    parts = max(1, min(torch.get_num_threads(), count // 64))
    bounds = [count * i // parts for i in range(parts + 1)]

    jobs = [partial(decode_shots, graph, task, results, a, b) for a, b in pairwise(bounds)]
    side_by_side(jobs, lambda: stop.fill(1))
    return Beliefs(*(torch.from_numpy(array) for array in results))
