"""Error rates by simulation, with intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fgnn.decoding.channels import Channel
from fgnn.decoding.code import Code
from fgnn.decoding.decode import decode
from fgnn.decoding.problem import Problem

# Words decoded in one call: enough to fill every lane, few enough to stop soon and to keep memory flat.
_BATCH_BITS = 1 << 24
_BATCH = 1 << 15


@dataclass(frozen=True)
class ErrorRate:
    """What was counted.

    Attributes:
        shots: Words decoded.
        errors: Words with a wrong bit, or shots with a wrong observable.
        bit_errors: Wrong bits (observables) over all words.
        bits: Bits (observables) per word.
        failures: Words that violate a check.
        iterations: Of belief propagation, over all words.
        seconds: Decoding time.
    """

    shots: int = 0
    errors: int = 0
    bit_errors: int = 0
    bits: int = 0
    failures: int = 0
    iterations: int = 0
    seconds: float = 0.0

    def __add__(self, other: ErrorRate) -> ErrorRate:
        a, b = asdict(self), asdict(other)
        return ErrorRate(**{key: max(a[key], b[key]) if key == "bits" else a[key] + b[key] for key in a})

    @property
    def rate(self) -> float:
        """Errors per shot."""
        return self.errors / self.shots if self.shots else float("nan")

    @property
    def bit_rate(self) -> float:
        """Wrong bits per bit."""
        return self.bit_errors / (self.shots * self.bits) if self.shots and self.bits else float("nan")

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Wilson's interval of the rate, at 95 % by default."""
        n = self.shots
        if n == 0:
            return 0.0, 1.0
        p, q = self.rate, z * z / n
        middle, width = (p + q / 2) / (1 + q), z * np.sqrt(p * (1 - p) / n + q / (4 * n)) / (1 + q)
        return max(0.0, float(middle - width)), min(1.0, float(middle + width))


def simulate(
    problem: Code | Problem,
    shots: int,
    channel: Channel | None = None,
    method: str = "min-sum",
    *,
    seed: int = 0,
    most_errors: int | None = None,
    sample: Callable[[int, int], Any] | None = None,
    progress: Callable[[ErrorRate], None] | None = None,
    begin: ErrorRate | None = None,
    **options: Any,
) -> ErrorRate:
    """Decode random shots and count the errors.

    A code needs a channel; the word sent is zero, which is as likely to fail as any other because channels and decoders
    are symmetric. A problem draws errors from its own prior, or from ``sample(shots, seed)``, which returns syndromes
    and observables. Shots depend on ``seed`` and their number only, not on the method.

    Args:
        most_errors: Stop after the batch that reaches this many errors.
        begin: Continue from what an earlier call with the same arguments had counted; its shots are not drawn again.
    """
    if shots < 1:
        raise ValueError(f"Expected at least one shot (got {shots})")
    if isinstance(problem, Code) == (channel is None):
        raise ValueError("Expected a channel for a code, and none for a problem with a prior of its own")
    bits = problem.num_bits if isinstance(problem, Code) else problem.code.num_bits
    batch = max(64, min(_BATCH, _BATCH_BITS // max(1, bits)))
    total = ErrorRate() if begin is None else begin
    while total.shots < shots and (most_errors is None or total.errors < most_errors):
        number = -(-total.shots // batch)
        total = total + _count(
            problem, min(batch, shots - total.shots), channel, method, [seed, number], sample, options
        )
        if progress is not None:
            progress(total)
    return total


def _count(
    problem: Code | Problem, count: int, channel: Channel | None, method: str, seeds: list[int],
    sample: Callable[[int, int], Any] | None, options: dict[str, Any],
) -> ErrorRate:  # fmt: skip
    if isinstance(problem, Code):
        assert channel is not None
        llr = channel.llr(np.zeros((count, problem.num_bits), np.uint8), np.random.default_rng(seeds))
        llr[:, : problem.hidden] = 0
        found = decode(problem, llr, method, **options)
        wrong = found.words
    else:
        number = int(np.random.SeedSequence(seeds).generate_state(1)[0])
        if sample is None:
            syndromes, errors = problem.sample(count, number)
            wanted = problem.flips(errors)
        else:
            syndromes, wanted = sample(count, number)
        found = decode(problem, syndromes, method, keep_words=problem.observables is None, **options)
        wrong = (found.words if found.observables is None else found.observables) ^ wanted
    return ErrorRate(
        count, int(wrong.any(1).sum()), int(wrong.sum()), wrong.shape[1], int((~found.converged).sum()),
        int(found.iterations.sum()), found.seconds,
    )  # fmt: skip
