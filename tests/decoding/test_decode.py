"""Decoders against enumeration, plain loops in float64, and each other."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fgnn.decoding import AWGN, BSC, METHODS, Bursts, Channel, Code, Erasure, Problem, decode, noise_of, simulate

pytest.importorskip("numba")

RNG = np.random.default_rng(7)
HAMMING = np.array([[1, 1, 0, 1, 1, 0, 0], [1, 0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0, 1]], np.uint8)
# a regular code of 24 bits in 12 checks
REGULAR = np.zeros((12, 24), np.uint8)
for _c in range(12):
    REGULAR[_c, [2 * _c, 2 * _c + 1, (2 * _c + 5) % 24, (2 * _c + 10) % 24, (2 * _c + 15) % 24, (2 * _c + 18) % 24]] = 1
TREE = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1]], np.uint8)


def best_words(h: np.ndarray, llr: np.ndarray, syndrome: np.ndarray) -> np.ndarray:
    """The most probable word with the syndrome, by enumeration."""
    words = np.array(list(product((0, 1), repeat=h.shape[1])), np.uint8)
    words = words[((words @ h.T) % 2 == syndrome).all(1)]
    return words[(words * llr).sum(1).argmin()]


def plain_loop(h, llr, syndrome, iterations, rule, gamma=0.0, scale=1.0):  # type: ignore[no-untyped-def]
    """Belief propagation as it is written in books: one message at a time."""
    edges = [(c, v) for c in range(len(h)) for v in np.flatnonzero(h[c])]
    r, post = dict.fromkeys(edges, 0.0), llr.astype(np.float64).copy()
    for t in range(iterations):
        q = {(c, v): post[v] - r[c, v] for c, v in edges}
        for c, v in edges:
            others = [q[c, u] for u in np.flatnonzero(h[c]) if u != v]
            if rule == "min-sum":
                size = min(map(abs, others)) * scale
                r[c, v] = size * np.prod([-1.0 if x < 0 else 1.0 for x in others]) * (1 - 2.0 * syndrome[c])
            else:
                r[c, v] = 2 * np.arctanh(np.prod(np.tanh(np.array(others) / 2)) * (1 - 2.0 * syndrome[c]))
        post = (
            (1 - gamma) * llr
            + gamma * post
            + np.array([sum(r[e] for e in edges if e[1] == v) for v in range(len(llr))])
        )
        word = (post < 0).astype(np.uint8)
        if ((h @ word) % 2 == syndrome).all():
            return word, t + 1, True
    return word, iterations, False


@pytest.mark.parametrize("rule", ["min-sum", "sum-product"])
def test_messages_are_those_of_a_plain_loop(rule: str) -> None:
    code = Code.of(REGULAR)
    llr = AWGN(0.9).llr(code.encode(RNG.integers(0, 2, (70, code.dimension))), RNG).astype(np.float64)
    options = {"scale": 0.8} if rule == "min-sum" else {}
    found = decode(code, llr, rule, dtype="float64", iterations=12, **options)
    for k in range(70):
        word, steps, done = plain_loop(REGULAR, llr[k], np.zeros(12), 12, rule, scale=0.8)
        assert (steps, done) == (found.iterations[k], found.converged[k])
        assert np.array_equal(word, found.words[k])


def test_memory_is_that_of_a_plain_loop_on_syndromes() -> None:
    problem = Problem.of(Code.of(REGULAR), RNG.uniform(0.02, 0.2, 24))
    syndromes, _ = problem.sample(40, seed=3)
    found = decode(problem, syndromes, "memory", dtype="float64", iterations=15, gamma=0.3)
    for k in range(40):
        word, steps, done = plain_loop(REGULAR, problem.prior, syndromes[k], 15, "min-sum", gamma=0.3)
        assert (steps, done) == (found.iterations[k], found.converged[k])
        assert np.array_equal(word, found.words[k])


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("sum-product", "fgnn")])
def test_trees_are_decoded_exactly(method: str) -> None:
    code = Code.of(TREE)
    llr = RNG.normal(0, 2, (30, 6))
    found = decode(code, llr, method, dtype="float64", **({"scale": 1.0} if method in ("min-sum", "osd") else {}))
    want = [best_words(TREE, row, np.zeros(3)) for row in llr]
    assert np.array_equal(found.words, want)
    assert found.converged.all()


@pytest.mark.parametrize("method", ["exact", "osd"])
def test_short_codes_are_decoded_as_by_enumeration(method: str) -> None:
    problem = Problem.of(Code.of(HAMMING), RNG.uniform(0.05, 0.3, 7))
    syndromes = np.array(list(product((0, 1), repeat=3)), np.uint8)
    found = decode(problem, syndromes, method, **({"order": 7} if method == "osd" else {}))
    want = np.array([best_words(HAMMING, problem.prior, s) for s in syndromes])
    cost = lambda words: (words * problem.prior).sum(1)  # noqa: E731
    if method == "exact":
        assert np.allclose(cost(found.words), cost(want))
    assert np.array_equal(problem.code.syndrome(found.words), syndromes)
    assert (cost(found.words) >= cost(want) - 1e-9).all()


def test_ordered_statistics_always_satisfy_the_checks_and_deeper_is_never_dearer() -> None:
    code = Code.of(REGULAR)
    llr = AWGN(1.3).llr(np.zeros((300, 24), np.uint8), RNG)
    costs = []
    for order in (None, 0, 12):
        found = decode(code, llr, "osd", iterations=3, order=order)
        assert found.converged.all()
        assert not code.syndrome(found.words).any()
        costs.append((found.words * llr).sum(1))
    assert (costs[1] <= costs[0] + 1e-3).all()
    assert (costs[2] <= costs[1] + 1e-3).all()


def test_a_syndrome_that_no_word_has_is_said_to_be_one() -> None:
    problem = Problem.of(Code.of(np.array([[1, 1], [1, 1]])), 0.1)
    found = decode(problem, np.array([[0, 1], [1, 1]], np.uint8), "osd")
    assert found.converged.tolist() == [False, True]


def test_relay_finds_what_plain_propagation_misses() -> None:
    problem = Problem.of(Code.of(REGULAR), 0.06)
    syndromes, _ = problem.sample(400, seed=1)
    plain = decode(problem, syndromes, "min-sum", iterations=80, scale=1.0)
    relay = decode(problem, syndromes, "relay", legs=30)
    assert relay.converged.mean() > plain.converged.mean()
    cost = lambda words: (words * problem.prior).sum(1)  # noqa: E731
    both = relay.converged & plain.converged
    assert cost(relay.words)[both].mean() <= cost(plain.words)[both].mean() + 1e-9
    again = decode(problem, syndromes[::-1], "relay", legs=30)
    assert np.array_equal(again.words[::-1], relay.words)  # neither order nor lanes matter


def test_layered_needs_fewer_iterations() -> None:
    code = Code.of(REGULAR)
    llr = AWGN(0.7).llr(np.zeros((500, 24), np.uint8), RNG)
    flooding, layered = (decode(code, llr, "min-sum", schedule=s) for s in ("flooding", "layered"))
    both = layered.converged & flooding.converged
    assert layered.iterations[both].mean() < 0.9 * flooding.iterations[both].mean()
    assert layered.converged.sum() >= flooding.converged.sum()


def test_shots_do_not_depend_on_their_neighbours() -> None:
    code = Code.of(REGULAR)
    llr = AWGN(1.0).llr(np.zeros((200, 24), np.uint8), RNG)
    whole = decode(code, llr, "min-sum")
    alone = np.concatenate([decode(code, llr[k : k + 1], "min-sum").words for k in range(0, 200, 17)])
    assert np.array_equal(alone, whole.words[::17])


@pytest.mark.parametrize(
    ("received", "options", "message"),
    [
        (np.zeros((2, 5), np.float32), {}, r"shape \(B, 7\)"),
        (np.zeros((2, 7), np.int64), {}, "log-likelihood"),
        (np.full((1, 7), np.nan), {}, "NaN"),
        (np.zeros((1, 7)), {"method": "magic"}, "Expected one of the methods"),
        (np.zeros((1, 7)), {"iterations": 0}, "at least one"),
        (np.zeros((1, 7)), {"schedule": "zigzag"}, "flooding or layered"),
        (np.zeros((1, 7)), {"dtype": "float16"}, "float32 or float64"),
        (np.zeros((1, 7)), {"scale": -1.0}, "scale"),
    ],
)
def test_bad_input_is_refused(received: np.ndarray, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(Code.of(HAMMING), received, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("channel", [AWGN(0.8), BSC(0.1), Bursts(0.8, 2.0), Erasure(0.25, certain=9.0)], ids=repr)
def test_log_likelihood_ratios_are_calibrated(channel: Channel) -> None:
    words = RNG.integers(0, 2, (1, 200_000), np.uint8)
    llr = channel.llr(words, np.random.default_rng(0))
    for low, high in ((-9.5, -2), (-2, -0.5), (-0.5, 0.5), (0.5, 2), (2, 9.5)):
        inside = (llr >= low) & (llr < high)
        if inside.sum() > 2000:  # the share of ones among bits with these ratios is the one that they state
            assert np.isclose(words[inside].mean(), (1 / (1 + np.exp(llr[inside]))).mean(), atol=0.02)


def test_noise_is_that_of_the_textbook() -> None:
    assert noise_of(0.0, 0.5) == 1.0
    assert np.isclose(np.mean(Erasure(0.25).llr(np.zeros((1, 50_000), np.uint8), RNG) == 0), 0.25, atol=0.01)


def test_error_rates_are_counted_with_intervals_and_add_up() -> None:
    code = Code.of(HAMMING)
    rate = simulate(code, 3000, BSC(0.05), "osd", order=7, seed=1)
    # a Hamming code corrects one error: 1 - (1-p)^7 - 7 p (1-p)^6
    exact = 1 - 0.95**7 - 7 * 0.05 * 0.95**6
    low, high = rate.interval(3.3)
    assert low < exact < high
    assert (rate + rate).shots == 6000
    assert simulate(code, 3000, BSC(0.05), "osd", order=7, seed=1).errors == rate.errors
    few = simulate(code, 10**6, BSC(0.2), "min-sum", most_errors=10)
    assert few.shots < 10**6
    with pytest.raises(ValueError, match="Expected a channel"):
        simulate(code, 10)
