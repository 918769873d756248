"""Belief propagation over parity checks: the schedule, and the engine that runs it on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

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
class Beliefs:
    """What belief propagation left of every shot.

    Attributes:
        words: The word found, or the last one.  # shape: (B, bits)
        posterior: Log-likelihood ratios after the last iteration, if they were asked for.  # shape: (B or 0, bits)
        iterations: Over all legs.  # shape: (B,)
        converged: Whether the word has the syndrome.  # shape: (B,)
    """

    words: Bits
    posterior: NDArray[Any]
    iterations: NDArray[np.int64]
    converged: NDArray[np.bool_]


def propagate(
    code: Code, llr: NDArray[Any], syndromes: Bits | None, schedule: Schedule, *, posterior: bool = False
) -> Beliefs:
    """Run belief propagation on every shot.

    Args:
        llr: Priors of each shot, or one row for all.  # shape: (1 or B, bits)
        syndromes: Of every shot; None for zeros.  # shape: (B, checks)
        posterior: Keep the posteriors.
    """
    need("numba")
    from fgnn.decoding.lanes import decode_lanes, lanes_for

    shots = len(llr) if syndromes is None else len(syndromes)
    n = code.num_bits
    out = Beliefs(
        np.zeros((shots, n), np.uint8),
        np.zeros((shots if posterior else 0, n), llr.dtype),
        np.zeros(shots, np.int64),
        np.zeros(shots, np.bool_),
    )
    stop = np.zeros(1, np.uint8)
    values = llr.dtype.type
    fixed = (
        code.starts, code.bits, *code.by_bit, np.ascontiguousarray(llr),
        np.zeros((0, code.num_checks), np.uint8) if syndromes is None else np.ascontiguousarray(syndromes),
        schedule.gammas.astype(llr.dtype), schedule.lengths, int(schedule.rule == "sum-product"),
        values(schedule.scale), values(schedule.offset), schedule.solutions, schedule.layered,
        values(1 - 1e-7 if llr.dtype == np.float32 else 1 - 1e-15), stop,
    )  # fmt: skip

    def job(a: int, b: int) -> Any:
        return lambda: decode_lanes(
            *fixed, lanes_for(b - a), a, b, out.words, out.posterior, out.iterations, out.converged
        )

    parts = max(1, min(torch.get_num_threads(), shots // 64))
    side_by_side([job(a, b) for a, b in pairwise([shots * i // parts for i in range(parts + 1)])], lambda: stop.fill(1))
    return out
