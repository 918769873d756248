"""The GPU's kernels, in Triton's interpreter where there is no GPU, against the lanes of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fgnn.decoding import AWGN, Code, Problem, decode
from fgnn.decoding.belief import Schedule, Shots, propagate

pytest.importorskip("numba")
pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RNG = np.random.default_rng(5)
PLAIN = np.zeros((1, 1), np.float32)


def ragged(seed: int, checks: int = 9, bits: int = 20) -> Code:
    """A code whose checks have 1 to 11 bits."""
    rng = np.random.default_rng(seed)
    h = np.zeros((checks, bits), np.uint8)
    for row in h:
        row[rng.choice(bits, rng.integers(1, 12), replace=False)] = 1
    return Code.of(h)


SCHEDULES = {
    "min-sum": Schedule("min-sum", np.array([9]), PLAIN, scale=0.8, offset=0.1),
    "growing scale": Schedule("min-sum", np.array([9]), PLAIN, scale=0.0),
    "sum-product": Schedule("sum-product", np.array([9]), PLAIN),
    "memory": Schedule("min-sum", np.array([9]), np.full((1, 1), 0.3, np.float32)),
    "relay": Schedule(
        "min-sum", np.array([6, 4, 4, 4]), RNG.uniform(-0.2, 0.6, (4, 20)).astype(np.float32), solutions=2
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
@pytest.mark.parametrize("soft", [False, True])
def test_words_iterations_and_posteriors_are_those_of_the_cpu(schedule: Schedule, soft: bool) -> None:
    from fgnn.decoding.shots import decode_on

    code = ragged(3)
    problem = Problem.of(code, RNG.uniform(0.03, 0.2, 20))
    if soft:
        shots = Shots(AWGN(0.9).llr(np.zeros((7, 20), np.uint8), RNG))
    else:
        shots = Shots(problem.prior[None].astype(np.float32), problem.sample(7, seed=3)[0])
    want = propagate(code, shots, schedule, posterior=True)
    llr = torch.from_numpy(shots.llr).to(DEVICE)
    syndromes = None if shots.syndromes is None else torch.from_numpy(shots.syndromes).to(DEVICE)
    got = decode_on(code, llr, syndromes, schedule, posterior=True, half=False)
    words, posterior, iterations, converged = (t.cpu() for t in got)
    assert torch.equal(words, want.words)
    assert torch.equal(iterations.long(), want.iterations)
    assert torch.equal(converged, want.converged)
    # float32 cannot tell how sure a message of more than 16 is
    certain = 12.0
    assert_close(posterior.clamp(-certain, certain), want.posterior.clamp(-certain, certain), rtol=1e-4, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("method", ["min-sum", "relay", "osd"])
def test_a_gpu_decodes_like_the_cpu(method: str, dtype: str) -> None:
    problem = Problem.of(ragged(4, 60, 150), 0.03)
    syndromes, _ = problem.sample(2000, seed=2)
    want = decode(problem, syndromes, method, device="cpu")
    got = decode(problem, syndromes, method, device="cuda", dtype=dtype)
    both = want.converged & got.converged
    assert (got.words == want.words).all(1)[both].mean() > (0.999 if dtype == "float32" else 0.95)
    assert abs(got.converged.mean() - want.converged.mean()) < 0.01
    solved = problem.code.syndrome(got.words[got.converged])
    assert np.array_equal(solved, syndromes[got.converged])
