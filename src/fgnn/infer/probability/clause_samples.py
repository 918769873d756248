r"""An estimate of the number of solutions of clauses, from random solutions.

A solution is drawn variable by variable, with propagation, going back where that fails (SampleSearch, Gogate and
Dechter 2011). Then

.. math:: Z \approx \frac{1}{S} \sum_s \frac{w(x_s)}{q(x_s)}

where :math:`q` is the product of the probabilities of the choices; a choice whose alternative was refuted counts as
certain. Samples come in rounds. Between them the variables of violated clauses move to the front of the order, and
probabilities towards those of the samples.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.exact.dense_sums import has_numba
from fgnn.infer.probability.counting import LOADING, LOOPS, Clauses
from fgnn.infer.probability.result import Beliefs
from fgnn.pgm import ModelBatch

_VIOLATED = 2000  # clauses before a sample is given up
_FIRST, _MOST = 10, 200  # samples of a round
_FEWEST = 10  # samples of an estimate
_EFFECTIVE = 20  # samples that probabilities are learned from, if weights were equal
_RATE = 0.1  # of learning
_DECAY = 0.9  # of hits, from round to round
_LEAST = 0.02  # the least probability of a value


def log_z_by_sampling(batch: ModelBatch, clauses: Clauses, seconds: float, seed: int = 0) -> Beliefs | None:
    """An estimate of log Z of a single model; None if too few solutions were found in time."""
    deadline = time.perf_counter() + seconds
    if not has_numba() or not LOOPS.wait(LOADING * seconds):
        return None
    sampler = _Sampler(clauses, seed)
    while sampler.consistent and time.perf_counter() < deadline:
        sampler.round()
    if len(sampler.logs) < _FEWEST:
        return None
    log_z = float(np.logaddexp.reduce(sampler.logs)) - math.log(len(sampler.logs)) + sampler.constant
    value = torch.tensor([log_z], dtype=torch.float64, device=batch.device)
    return Beliefs.of(batch.unary.new_zeros(1, 0, 0), value, info={"solutions": len(sampler.logs)})


class _Sampler:
    """Rounds of samples; ``logs`` has the log of weight over probability of each."""

    def __init__(self, clauses: Clauses, seed: int) -> None:
        from fgnn.infer.probability import clause_kernels

        self.kernels, self.weight = clause_kernels, clauses.weight
        first, of_literal = clauses.of_literal
        self.structure = (clauses.literals, clauses.starts, first, of_literal)
        n = len(self.weight) // 2
        self.state, self.trail, self.size = np.full(n, -1, np.int8), np.zeros(n + 1, np.int64), 0
        self.consistent = True
        for literal in clauses.literals[clauses.starts[:-1][np.diff(clauses.starts) == 1]].tolist():
            fits, self.size = clause_kernels.assign(literal, self.state, self.trail, self.size, *self.structure)
            self.consistent = self.consistent and fits
        self.constant = clauses.constant + float(self.weight[self.trail[: self.size]].sum())
        occurs = np.diff(first).reshape(n, 2).sum(1)
        self.prior, self.hits = occurs / max(1, occurs.max(initial=0)), np.zeros(n)
        self.single = self.weight[1::2] == -np.inf  # variables of one state
        self.p = self._within(np.exp(self.weight[1::2] - np.logaddexp(self.weight[0::2], self.weight[1::2])))
        self.rng, self.samples = np.random.default_rng(seed), _FIRST
        self.logs: list[float] = []

    def round(self) -> None:
        n = len(self.p)
        found, solutions, hits = np.zeros(self.samples), np.zeros((self.samples, n), np.int8), np.zeros(n)
        order = np.argsort(-(n * self.hits + self.prior), kind="stable")
        count = self.kernels.sample_solutions(
            self.p, order, self.weight, self.state, self.trail, self.size, *self.structure, _VIOLATED, self.rng,
            found, solutions, hits,
        )  # fmt: skip
        self.hits = _DECAY * self.hits + hits / max(1.0, hits.sum())
        self.logs += found[:count].tolist()
        if 2 * count > self.samples:
            self.samples = min(_MOST, 2 * self.samples)
        if count:
            share = _tempered(found[:count])
            self.p = self._within((1 - _RATE) * self.p + _RATE * (share @ solutions[:count]))

    def _within(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(self.single, 0.0, np.clip(p, _LEAST, 1 - _LEAST))


def _tempered(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The samples' shares, evened out until enough of them count."""
    power = 1.0
    while True:
        share: NDArray[np.float64] = np.exp(power * (logs - logs.max()))
        share /= share.sum()
        if 1 / (share**2).sum() >= min(_EFFECTIVE, len(logs) / 3):
            return share
        power *= 0.7
