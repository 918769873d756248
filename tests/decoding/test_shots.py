"""The GPU's kernel against the lanes of the CPU; without a GPU it is built for the CPU, with one thread a block."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fgnn.decoding import AWGN, Code, Problem, decode
from fgnn.decoding.belief import Schedule, Shots, propagate
from fgnn.decoding.shots import KERNEL, Layout, decode_on
from fgnn.decoding.wiring import wire
from fgnn.runtime.nvrtc import Compile
from tests.cuda_on_cpu import compiler

pytest.importorskip("numba")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RNG = np.random.default_rng(5)
PLAIN = np.zeros((1, 1), np.float32)

# What this kernel needs besides.
PRELUDE = """
#define __shared__ static
#define __syncthreads_or(x) (x)
struct ushort4 { unsigned short x, y, z, w; };
struct uint4 { unsigned int x, y, z, w; };
template <class T> T atomicAdd(T* p, T x) { T old = *p; *p += x; return old; }
inline int __float_as_int(float x) { int i; memcpy(&i, &x, 4); return i; }
inline float __int_as_float(int i) { float x; memcpy(&x, &i, 4); return x; }
inline float half_to_float(unsigned short h) { _Float16 x; memcpy(&x, &h, 2); return x; }
inline unsigned short float_to_half(float x) { _Float16 y = x; unsigned short h; memcpy(&h, &y, 2); return h; }
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    return compiler(KERNEL, tmp_path_factory.mktemp("kernel"), PRELUDE, ["-ffp-contract=off"])


def ragged(seed: int, checks: int = 9, bits: int = 20, most: int = 11) -> Code:
    """A code whose checks have 1 to 11 bits."""
    rng = np.random.default_rng(seed)
    h = np.zeros((checks, bits), np.uint8)
    for row in h:
        row[rng.choice(bits, rng.integers(1, most + 1), replace=False)] = 1
    return Code.of(h)


SCHEDULES = {
    "min-sum": Schedule("min-sum", np.array([9]), PLAIN, scale=0.8, offset=0.1),
    "growing scale": Schedule("min-sum", np.array([9]), PLAIN, scale=0.0),
    "sum-product": Schedule("sum-product", np.array([9]), PLAIN),
    "memory": Schedule("min-sum", np.array([9]), np.full((1, 1), 0.3, np.float32)),
    "relay": Schedule(
        "min-sum", np.array([6, 4, 4, 4]), RNG.uniform(-0.2, 0.6, (4, 50)).astype(np.float32), solutions=2
    ),
    "layered min-sum": Schedule("min-sum", np.array([9]), PLAIN, scale=0.8, layered=True),
    "layered sum-product": Schedule("sum-product", np.array([9]), PLAIN, layered=True),
}


def received(code: Code, soft: bool, count: int = 30) -> Shots:
    n = code.num_bits
    if soft:
        return Shots(AWGN(0.9).llr(np.zeros((count, n), np.uint8), RNG))
    problem = Problem.of(code, RNG.uniform(0.02, 0.1, n))
    return Shots(problem.prior[None].astype(np.float32), problem.sample(count, seed=3)[0])


def run(code: Code, shots: Shots, schedule: Schedule, build: Compile, *, half: bool = False) -> list[torch.Tensor]:
    llr = torch.from_numpy(shots.llr).to(DEVICE)
    syndromes = None if shots.syndromes is None else torch.from_numpy(shots.syndromes).to(DEVICE)
    got = decode_on(code, llr, syndromes, schedule, posterior=True, half=half, build=build)
    return [tensor.cpu() for tensor in got]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
@pytest.mark.parametrize("soft", [False, True])
def test_words_iterations_and_posteriors_are_those_of_the_cpu(schedule: Schedule, soft: bool, build: Compile) -> None:
    code = ragged(3, checks=18, bits=50, most=21)
    shots = received(code, soft)
    want = propagate(code, shots, schedule, posterior=True)
    words, posterior, iterations, converged = run(code, shots, schedule, build)
    assert torch.equal(words, want.words)
    assert torch.equal(iterations.long(), want.iterations)
    assert torch.equal(converged, want.converged)
    if schedule.rule == "min-sum":  # the same operations in the same order
        assert torch.equal(posterior, want.posterior)
    # float32 cannot tell how sure a message of more than 16 is
    certain = 12.0
    assert_close(posterior.clamp(-certain, certain), want.posterior.clamp(-certain, certain), rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("name", ["min-sum", "sum-product", "layered min-sum"])
@pytest.mark.parametrize("room", [3 << 10, 1 << 10])
def test_state_that_does_not_fit_moves_to_global_memory(
    name: str, room: int, build: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, schedule = ragged(6, checks=200, bits=300), SCHEDULES[name]
    shots = received(code, soft=True, count=4)
    layout = Layout.of(wire(code, DEVICE, False), 300, 200, sums=False, half=False, room=room)
    assert layout.home == (1 if room > 2 << 10 else 2)
    want = run(code, shots, schedule, build)
    monkeypatch.setattr("fgnn.decoding.shots._room", lambda device: room)
    for a, b in zip(run(code, shots, schedule, build), want, strict=True):
        assert torch.equal(a, b)


def test_half_precision_rarely_changes_a_word(build: Compile) -> None:
    code = ragged(4, 30, 80)
    shots = received(code, soft=True, count=100)
    full, half = (run(code, shots, SCHEDULES["min-sum"], build, half=flag) for flag in (False, True))
    assert (full[0] == half[0]).all(1).float().mean() > 0.9


def test_checks_of_a_level_share_no_bit() -> None:
    code = ragged(8, 40, 60)
    wiring = wire(code, torch.device("cpu"), True)
    starts, order = wiring.level_starts.tolist(), wiring.check_order.numpy()
    assert starts[0] == 0
    assert starts[-1] == 40
    for a, b in pairwise(starts):
        assert code.matrix()[order[a:b]].sum(0).max() == 1


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
