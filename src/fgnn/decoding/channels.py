"""Channels: noise on the words that are sent, and the log-likelihood ratios of what is received.

Bit 0 is sent as +1 and bit 1 as -1. A log-likelihood ratio is log p(y | 0) / p(y | 1), so positive means zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fgnn.decoding.code import Bits

Values = NDArray[np.float32]


class Channel(Protocol):
    """Noise, and what the receiver knows about it."""

    def llr(self, words: Bits, rng: np.random.Generator) -> Values:
        """Send words and return the log-likelihood ratios at the receiver."""


def _sign(words: Bits) -> Values:
    return (1 - 2 * words.astype(np.float32)).astype(np.float32)


def noise_of(snr_db: float, rate: float) -> float:
    """The standard deviation of the noise at E_b / N_0 decibels: σ² = 1 / (2 · rate · 10^(dB / 10))."""
    if not 0 < rate <= 1:
        raise ValueError(f"Expected a rate in (0, 1] (got {rate})")
    return float((2 * rate * 10 ** (snr_db / 10)) ** -0.5)


@dataclass(frozen=True)
class AWGN:
    """White Gaussian noise: y = ±1 + σ n, llr = 2 y / σ²."""

    sigma: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma < np.inf:
            raise ValueError(f"Expected a positive sigma (got {self.sigma})")

    def llr(self, words: Bits, rng: np.random.Generator) -> Values:
        y = _sign(words) + self.sigma * rng.standard_normal(words.shape, np.float32)
        return (2 / self.sigma**2 * y).astype(np.float32)


@dataclass(frozen=True)
class BSC:
    """Every bit is flipped with probability p; llr = ± log (1 - p) / p."""

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p < 0.5:
            raise ValueError(f"Expected a probability in (0, 0.5) (got {self.p})")

    def llr(self, words: Bits, rng: np.random.Generator) -> Values:
        y = words ^ (rng.random(words.shape, np.float32) < self.p)
        return _sign(y) * np.float32(np.log((1 - self.p) / self.p))


@dataclass(frozen=True)
class Erasure:
    """Every bit is lost with probability p (llr = 0) and right otherwise (llr = ± certain)."""

    p: float
    certain: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ValueError(f"Expected a probability in [0, 1) (got {self.p})")

    def llr(self, words: Bits, rng: np.random.Generator) -> Values:
        kept = rng.random(words.shape, np.float32) >= self.p
        return (_sign(words) * self.certain * kept).astype(np.float32)


@dataclass(frozen=True)
class Bursts:
    """Gaussian noise, and with probability ``rate`` a bit has additional noise of standard deviation ``burst``.

    y = ±1 + σ n + b σ_b z with b ~ Bernoulli(rate). A receiver that knows this uses the ratio of the two mixtures;
    ``aware=False`` gives the ratio of a receiver that knows σ only.
    """

    sigma: float
    burst: float
    rate: float = 0.05
    aware: bool = True

    def __post_init__(self) -> None:
        if not (0 < self.sigma < np.inf and 0 <= self.burst < np.inf and 0 <= self.rate <= 1):
            raise ValueError("Expected sigma > 0, burst >= 0 and rate in [0, 1]")

    def llr(self, words: Bits, rng: np.random.Generator) -> Values:
        hit = rng.random(words.shape, np.float32) < self.rate
        y = _sign(words) + self.sigma * rng.standard_normal(words.shape, np.float32)
        y = np.asarray(y + hit * self.burst * rng.standard_normal(words.shape, np.float32), np.float32)
        if not self.aware:
            return np.asarray(2 / self.sigma**2 * y, np.float32)
        return np.asarray(self._log_density(y - 1) - self._log_density(y + 1), np.float32)

    def _log_density(self, noise: Values) -> NDArray[np.float64]:
        """log p(noise) up to a constant."""
        quiet, loud = self.sigma**2, self.sigma**2 + self.burst**2
        with np.errstate(divide="ignore"):
            a = np.log1p(-self.rate) - 0.5 * np.log(quiet) - noise.astype(np.float64) ** 2 / (2 * quiet)
            b = np.log(self.rate) - 0.5 * np.log(loud) - noise.astype(np.float64) ** 2 / (2 * loud)
        return np.asarray(np.logaddexp(a, b), np.float64)
