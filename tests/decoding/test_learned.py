"""The learned decoder: belief propagation at first, and as symmetric as it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fgnn.decoding import AWGN, Code, Problem, decode, noise_of
from fgnn.decoding.learned import DecoderSize, LearnedDecoder, load_decoder, run_decoder, run_plain
from fgnn.decoding.regular import regular_code
from fgnn.decoding.tanner import Tanner
from fgnn.errors import InputError

RNG = np.random.default_rng(11)
CODE = regular_code(24, 3, 6)
RAGGED = Code.of([[1, 1, 0, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1, 0]])


def trained(seed: int = 0, turns: int = 1, plain: int = 0) -> LearnedDecoder:
    """A network whose heads are no longer zero."""
    torch.manual_seed(seed)
    network = LearnedDecoder(DecoderSize(width=6, bases=3, turns=turns, plain=plain)).double()
    for head in (network.edge_head, network.bit_head):
        torch.nn.init.normal_(head.weight, std=0.1)
        torch.nn.init.normal_(head.bias, std=0.1)
    return network


def noisy(code: Code, count: int, sigma: float = 0.8) -> torch.Tensor:
    return torch.from_numpy(AWGN(sigma).llr(np.zeros((count, code.num_bits), np.uint8), RNG))


@pytest.mark.parametrize("code", [CODE, RAGGED], ids=["regular", "ragged"])
def test_untrained_it_is_sum_product(code: Code) -> None:
    pytest.importorskip("numba")
    llr = noisy(code, 200).numpy()
    want, got = decode(code, llr, "sum-product", iterations=12, device="cpu"), decode(code, llr, "fgnn", device="cpu")
    assert np.array_equal(got.words, want.words)
    assert np.array_equal(got.iterations, want.iterations)
    assert np.array_equal(got.converged, want.converged)
    assert 0.3 < got.converged.mean() < 1


def test_untrained_it_is_sum_product_on_syndromes() -> None:
    pytest.importorskip("numba")
    problem = Problem.of(CODE, RNG.uniform(0.02, 0.15, 24))
    syndromes, _ = problem.sample(200, seed=1)
    want, got = (decode(problem, syndromes, method, iterations=9, device="cpu") for method in ("sum-product", "fgnn"))
    assert np.array_equal(got.words, want.words)
    assert np.array_equal(got.iterations, want.iterations)


@pytest.mark.parametrize("plain", [0, 3])
def test_untrained_with_a_turn_for_each_check_it_is_layered_sum_product(plain: int) -> None:
    pytest.importorskip("numba")
    llr = noisy(RAGGED, 200)
    want = decode(RAGGED, llr.numpy(), "sum-product", iterations=6, schedule="layered", device="cpu")
    network = LearnedDecoder(DecoderSize(turns=RAGGED.num_checks, plain=plain))
    tanner = Tanner.of(RAGGED, turns=network.size.turns)
    got = run_decoder(network, tanner, llr, llr.new_zeros(200, RAGGED.num_checks), 6)
    assert np.array_equal((got.post < 0).numpy(), want.words)
    assert np.array_equal(got.iterations.numpy(), want.iterations)
    flooding = decode(RAGGED, llr.numpy(), "sum-product", iterations=6, device="cpu")
    assert not np.array_equal(flooding.iterations, want.iterations)


def test_turns_see_the_syndrome_of_their_checks() -> None:
    """Checks of codes side by side are reordered by turn; a syndrome is not."""
    llr, both = noisy(CODE, 50), Code.disjoint([CODE, CODE])
    syndrome = torch.from_numpy(RNG.integers(0, 2, (50, CODE.num_checks))).float()
    network, alone = LearnedDecoder(DecoderSize(turns=3)), Tanner.of(CODE, turns=3)
    union = Tanner.of(CODE, CODE, turns=3)
    assert not torch.equal(union.order, torch.arange(both.num_checks))
    want = run_decoder(network, alone, llr, syndrome, 3)
    got = run_decoder(network, union, torch.cat([llr, llr], 1), torch.cat([syndrome, syndrome], 1), 3)
    same = want.iterations == got.iterations
    torch.testing.assert_close(got.post[same][:, :24], want.post[same])
    assert same.all()


def test_what_the_plain_iterations_solve_never_reaches_the_network() -> None:
    network, tanner = trained(plain=3), Tanner.of(CODE)
    llr = noisy(CODE, 200).double()
    zeros = llr.new_zeros(200, CODE.num_checks)
    early = run_plain(tanner, llr, zeros, network.begin(tanner, llr), 3)[1]
    found, other = (run_decoder(n, tanner, llr, zeros, 8) for n in (network, trained(1, plain=3)))
    assert torch.equal(found.iterations <= 3, early)
    assert torch.equal(found.post[early], other.post[early])
    assert not torch.allclose(found.post[~early], other.post[~early])


def test_all_words_are_equally_hard() -> None:
    """Adding a code word flips the priors of its ones, and the posteriors with them."""
    network, tanner = trained(), Tanner.of(CODE)
    llr = noisy(CODE, 50).double()
    word = torch.from_numpy(CODE.encode(RNG.integers(0, 2, (50, CODE.dimension))))
    sign = 1 - 2 * word.double()
    zeros = torch.zeros(50, CODE.num_checks, dtype=torch.float64)
    a, b = (run_decoder(network, tanner, x, zeros, 6) for x in (llr, sign * llr))
    torch.testing.assert_close(b.post, sign * a.post)
    assert torch.equal(a.iterations, b.iterations)
    assert not torch.allclose(a.post, run_decoder(LearnedDecoder().double(), tanner, llr, zeros, 6).post)


@pytest.mark.parametrize("turns", [1, 3])
def test_codes_side_by_side_do_not_mix(turns: int) -> None:
    network, codes = trained(turns=turns), [CODE, RAGGED]
    union = Tanner.of(*codes, turns=turns)
    parts = [noisy(code, 8).double() for code in codes]
    state, llr = network.begin(union, torch.cat(parts, 1)), torch.cat(parts, 1)
    zeros = llr.new_zeros(8, CODE.num_checks + RAGGED.num_checks)
    for _ in range(3):
        state = network.step(union, llr, zeros, state)
    for code, part, post in zip(codes, parts, state.post.split([24, 7], 1), strict=True):
        tanner = Tanner.of(code, turns=turns)
        alone = network.begin(tanner, part)
        for _ in range(3):
            alone = network.step(tanner, part, part.new_zeros(8, code.num_checks), alone)
        torch.testing.assert_close(alone.post, post)


def test_words_that_are_done_leave_and_the_others_do_not_notice() -> None:
    network, tanner = trained(2), Tanner.of(CODE)
    llr = noisy(CODE, 40).double()
    zeros = llr.new_zeros(40, CODE.num_checks)
    whole = run_decoder(network, tanner, llr, zeros, 8)
    assert len(whole.iterations.unique()) > 2
    for k in range(0, 40, 7):
        alone = run_decoder(network, tanner, llr[k : k + 1], zeros[:1], 8)
        torch.testing.assert_close(alone.post[0], whole.post[k])
        assert alone.iterations[0] == whole.iterations[k]


@pytest.mark.parametrize("turns", [1, 4])
def test_every_parameter_can_learn(turns: int) -> None:
    network, tanner = trained(turns=turns), Tanner.of(CODE, turns=turns)
    llr = noisy(CODE, 16).double()
    state = network.begin(tanner, llr)
    for _ in range(3):
        state = network.step(tanner, llr, llr.new_zeros(16, CODE.num_checks), state)
    torch.nn.functional.softplus(-state.post).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().max() > 0) for p in network.parameters())


def test_other_weights_are_refused() -> None:
    with pytest.raises(InputError, match="weights of a decoder"):
        load_decoder("paper-map-1")
    with pytest.raises(ValueError, match="at least one iteration"):
        decode(CODE, noisy(CODE, 2).numpy(), "fgnn", iterations=0, device="cpu")


def ccsds() -> Code:
    """The (128, 64) code of CCSDS 231.1, by the shifts of the identities in its blocks of 16 rows and columns."""
    shifts = [
        [[0, 7], [2], [14], [6], [], [0], [13], [0]],
        [[6], [0, 15], [0], [1], [0], [], [0], [7]],
        [[4], [1], [0, 15], [14], [11], [0], [], [3]],
        [[0], [1], [9], [0, 13], [14], [1], [0], []],
    ]
    ones = [
        (16 * r + i, 16 * c + (s + i) % 16)
        for r, blocks in enumerate(shifts)
        for c, block in enumerate(blocks)
        for s in block
        for i in range(16)
    ]
    checks, bits = zip(*ones, strict=True)
    return Code.of_edges(checks, bits, (64, 128))


def test_the_packaged_decoder_corrects_what_sum_product_leaves() -> None:
    pytest.importorskip("numba")
    code = ccsds()
    assert code.dimension == 64
    llr = AWGN(noise_of(3.5, 0.5)).llr(np.zeros((1500, 128), np.uint8), np.random.default_rng(5))
    learned = decode(code, llr, "fgnn", weights="decode-ccsds", device="cpu")
    plain = decode(code, llr, "sum-product", iterations=12, device="cpu")
    assert learned.iterations.max() <= 12
    assert 0 < learned.words.any(1).sum() < 0.6 * plain.words.any(1).sum()
