"""What is decoded: parity checks, the prior of every bit, and what a word is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fgnn.decoding.code import Bits, Code

if TYPE_CHECKING:
    from fgnn.pgm import GraphicalModel


@dataclass(frozen=True, eq=False)
class Problem:
    """Find the most probable x with H x = s: parity factors and a unary potential for every bit.

    A received word has s = 0 and log-likelihood ratios of its own. The errors of a circuit have one prior for all shots
    and a syndrome for each; what matters is not x itself but the observables that it flips.

    Attributes:
        code: H.
        prior: log P(x_i = 0) / P(x_i = 1) before anything is observed.  # shape: (bits,)
        observables: Rows whose parity with x is the answer, or None if it is x.  # shape: (observables, bits)
        kept: The detectors of a circuit that are checks here, if others were left out.  # shape: (checks,)
        detectors: The number of detectors of the circuit, those left out included; 0 if none were.
    """

    code: Code
    prior: NDArray[np.float64]
    observables: Code | None = None
    kept: NDArray[np.int64] | None = None
    detectors: int = 0

    def __post_init__(self) -> None:
        if self.prior.shape != (self.code.num_bits,):
            raise ValueError(f"Expected one prior for each of {self.code.num_bits} bits (got shape {self.prior.shape})")

    @classmethod
    def of(cls, code: Code, probability: ArrayLike) -> Problem:
        """Build the problem whose bits are ones with these probabilities, before anything is observed."""
        p = np.broadcast_to(np.asarray(probability, np.float64), (code.num_bits,))
        if not ((p > 0) & (p < 1)).all():
            raise ValueError(f"Expected probabilities between 0 and 1 (got {p.min()} to {p.max()})")
        return cls(code, np.log1p(-p) - np.log(p))

    def sample(self, shots: int, seed: int = 0) -> tuple[Bits, Bits]:
        """Draw errors from the prior; return their syndromes and the errors.  # shape: (B, checks), (B, bits)"""
        p = 1 / (1 + np.exp(self.prior))
        errors = (np.random.default_rng(seed).random((shots, self.code.num_bits)) < p).astype(np.uint8)
        return self.code.syndrome(errors), errors

    def flips(self, words: ArrayLike) -> Bits:
        """The observables that errors flip, or the errors themselves if there are no observables."""
        x = np.asarray(words, np.uint8)
        return x if self.observables is None else self.observables.syndrome(x)

    def model(self, syndrome: ArrayLike | None = None, llr: ArrayLike | None = None) -> GraphicalModel:
        """The graphical model of one shot; the score of x is its log-probability up to a constant."""
        from fgnn.pgm import GraphicalModel

        unary = np.asarray(self.prior if llr is None else llr, np.float64)
        parity = np.zeros(self.code.num_checks, np.uint8) if syndrome is None else np.asarray(syndrome)
        model = GraphicalModel([2] * self.code.num_bits)
        for i, value in enumerate(unary):
            model.add_unary(i, [0.0, -float(value)])
        starts = self.code.starts
        for c, value in enumerate(parity):
            model.add_parity(self.code.bits[starts[c] : starts[c + 1]].tolist(), int(value))
        return model
