"""What the page computes itself equals Python to 1e-9: messages, bounds, elimination and the packaged network."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fgnn import GraphicalModel, ModelBatch, marginals, read_model, solve, write_model
from fgnn.models.map.equivalent import canonical
from fgnn.models.map.featurise import featurise
from fgnn.models.map.learned import load_network
from fgnn.play.compiled_network import compiled_network
from fgnn.play.examples import EXAMPLES
from fgnn.play.model_json import model_to_json
from fgnn.play.site import WEIGHTS
from fgnn.theory import max_product_network
from tests.play.plain_messages import max_product_steps

TOLERANCE = 1e-9


def random_model(seed: int) -> GraphicalModel:
    """A loopy model of mixed cardinality and arity; every other one forbids entries, every third has a long budget."""
    rng = np.random.default_rng(seed)
    cards = np.where(rng.random(8) < 0.6, 2, rng.integers(1, 5, 8))
    cards[:2] = 2
    if seed % 3 == 0:
        cards = np.full(12, 2)
    n = len(cards)
    model = GraphicalModel(cards)
    for i, k in enumerate(cards):
        model.add_unary(i, rng.normal(size=k))
    for _ in range(int(rng.integers(3, 8))):
        scope = rng.permutation(n)[: rng.integers(2, 4)]
        values = rng.normal(size=cards[scope])
        if seed % 2:
            values[rng.random(values.shape) < 0.2] = -np.inf
        model.add_table(scope.tolist(), values)
    binary = np.flatnonzero(cards == 2)
    for size in {1, 2, len(binary)}:
        at_least = int(rng.integers(0, size))
        model.add_budget(
            rng.permutation(binary)[:size].tolist(), int(rng.integers(at_least, size + 1)), at_least=at_least
        )
    return model


MODELS = {name: EXAMPLES[name].make() for name in EXAMPLES if name != "denoising"}
MODELS |= {f"random {seed}": random_model(seed) for seed in range(8)}


@pytest.fixture(scope="module")
def site_page(browser: Any, site: Path) -> Any:
    page = browser.new_page()
    page.goto(site.as_uri())
    page.wait_for_selector("body[data-ready]")
    return page


def on_page(page: Any, body: str, *arguments: Any) -> Any:
    """The value of a function body in the page: `m` is the model, `p` the parts, `plain` makes numbers JSON."""
    head = """([data, ...rest]) => { const p = globalThis.playground, m = p.readModel(data);
        const plain = (v) => v === null ? null : v.map ? Array.from(v, plain) : Number.isFinite(v) ? v : String(v); """
    return page.evaluate(head + body + "}", [model_to_json(arguments[0]), *arguments[1:]])


def close(mine: Any, theirs: Any) -> None:
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(np.array(a, dtype=float), np.array(b, dtype=float), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_max_product_step_by_step(site_page: Any, name: str) -> None:
    for damping in (0.0, 0.35):
        steps = on_page(
            site_page,
            """return p.finish(p.passMessages(m, { iterations: 10, damping: rest[0] })).map((s) =>
                ({ beliefs: plain(s.beliefs), sent: plain(s.toVariable), score: plain([s.score])[0] }));""",
            MODELS[name],
            damping,
        )
        for mine, theirs in zip(steps, max_product_steps(MODELS[name], 10, damping), strict=True):
            close(mine["beliefs"], theirs["beliefs"])
            close(mine["sent"], [m["values"] for m in theirs["to_variable"]])


@pytest.mark.parametrize("name", MODELS)
def test_sum_product(site_page: Any, name: str) -> None:
    model = MODELS[name]
    for iterations, damping in ((1, 0.0), (7, 0.25)):
        mine = on_page(
            site_page,
            """const last = p.finish(p.passMessages(m, { rule: "sum", iterations: rest[0], damping: rest[1] })).at(-1);
            return plain(last.beliefs);""",
            model,
            iterations,
            damping,
        )
        options = {"iterations": iterations, "damping": damping, "tolerance": 0.0}
        if solve(model, "exact").status == "infeasible":  # beliefs of nothing
            continue
        for a, b in zip(mine, marginals(model, "sum-product", **options).variables, strict=True):
            beliefs = torch.tensor([float(v) for v in a], dtype=torch.float64)
            np.testing.assert_allclose(beliefs.softmax(0), b, atol=TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_elimination_and_the_bound(site_page: Any, name: str) -> None:
    model = MODELS[name]
    mine = on_page(
        site_page,
        """const best = p.finish(p.eliminateMax(m)), sum = p.finish(p.eliminateSum(m));
        return { assignment: best.assignment, score: plain([best.score])[0], logZ: plain([sum.logZ])[0],
                 marginals: sum.marginals, bounds: plain(p.finish(p.dualBounds(m, 15))) };""",
        model,
    )
    exact = solve(model, "exact")
    assert float(mine["score"]) == pytest.approx(exact.score, abs=TOLERANCE)
    if mine["assignment"] is not None:
        assert model.score(mine["assignment"]) == pytest.approx(exact.score, abs=TOLERANCE)
        p = marginals(model, "exact")
        assert float(mine["logZ"]) == pytest.approx(p.log_partition, abs=TOLERANCE)
        for a, b in zip(mine["marginals"], p.variables, strict=True):
            np.testing.assert_allclose(a, b, atol=TOLERANCE)
    bounds = [float(b) for b in mine["bounds"]]
    assert all(b >= exact.score - TOLERANCE for b in bounds)
    assert all(b <= a for a, b in pairwise(bounds))


def test_the_bound_is_tight_on_a_tree(site_page: Any) -> None:
    tree = EXAMPLES["tree"].make()
    bounds = on_page(site_page, "return p.finish(p.dualBounds(m, 12));", tree)
    assert bounds[-1] == pytest.approx(solve(tree, "exact").score, abs=1e-6)


def budget_and_forbidden_entry() -> GraphicalModel:
    model = GraphicalModel([2, 2, 2, 3])
    model.add_unaries(np.random.default_rng(0).normal(size=9))
    model.add_budget((0, 1, 2), at_most=1)
    model.add_table((2, 3), [[0.1, -np.inf, 2.0], [1.0, 0.5, -np.inf]])
    return model


@pytest.mark.parametrize("name", ["paper", "grid", "ldpc", "mixed"])
def test_the_compiled_network(site_page: Any, name: str) -> None:
    model = MODELS[name] if name in MODELS else budget_and_forbidden_entry()
    network = compiled_network(model)
    mine = on_page(site_page, "return plain(p.networkBeliefs(rest[0], 6));", model, network)
    for a, b in zip(mine, max_product_network(model, 6, normalise=True).beliefs(), strict=True):
        close(a, [x.tolist() for x in b])


def trained_scores(model: GraphicalModel) -> np.ndarray:
    """The packaged network in float64; its own forward pass returns float32."""
    network, _ = load_network(WEIGHTS)
    network = network.double()
    batch = canonical(ModelBatch.stack([model]).to(dtype=torch.float64))
    features = featurise(batch, positions="none", arity=network.arity, centre=True, masks=False, singles=False)
    factors = dict(features.factors)
    if "budget" in factors:
        factors["budget"] = factors["budget"] * network.scale
    with torch.no_grad():
        return np.asarray(network.body(features.graph, features.variables, factors, features.edges)[0])


@pytest.mark.parametrize("name", ["chain", "grid", "loop", "spin-glass", "alone"])
def test_the_packaged_network(site_page: Any, name: str) -> None:
    model = GraphicalModel([2, 2]) if name == "alone" else MODELS[name]
    mine = on_page(
        site_page,
        """return p.loadWeights((text) => p.readSafetensors(p.fromBase64(text)).tensors)
            .then((tensors) => plain(p.finish(p.networkScores(tensors, m))));""",
        model,
    )
    np.testing.assert_allclose(np.array(mine), trained_scores(model), atol=TOLERANCE, rtol=TOLERANCE)


def test_the_tour_tells_the_truth(site_page: Any) -> None:
    """What the texts of the tour claim of their models."""

    def scores(name: str, iterations: int, damping: float) -> list[float]:
        steps = "return p.finish(p.passMessages(m, { iterations: rest[0], damping: rest[1] })).map((s) => s.score);"
        return [float(s) for s in on_page(site_page, steps, MODELS[name], iterations, damping)]

    best = {name: solve(MODELS[name], "exact").score for name in ("tree", "loop", "spin-glass")}
    assert scores("tree", 12, 0.0)[-1] == pytest.approx(best["tree"])
    swing = scores("loop", 20, 0.0)[8:]
    assert len({round(s, 9) for s in swing}) == 2
    assert max(swing) < best["loop"] - 0.1
    assert scores("loop", 20, 0.5)[-1] == pytest.approx(best["loop"])
    assert max(scores("spin-glass", 100, 0.5)) < best["spin-glass"] - 0.1
    learned = trained_scores(MODELS["spin-glass"]).argmax(1)
    assert MODELS["spin-glass"].score(learned) == pytest.approx(best["spin-glass"])


@pytest.mark.parametrize("suffix", [".uai", ".fgm", ".uai.gz", ".fgm.gz"])
def test_the_page_reads_files_as_python_does(site_page: Any, tmp_path: Path, suffix: str) -> None:
    model = EXAMPLES["chain"].make()
    file = tmp_path / f"model{suffix.removesuffix('.gz')}"
    write_model(model, file)
    data = file.read_bytes() if not suffix.endswith(".gz") else gzip.compress(file.read_bytes())
    score = on_page(
        site_page,
        """return p.readFile(rest[0], new Uint8Array(rest[1])).then((m) =>
            ({ n: m.variables.length, score: p.finish(p.eliminateMax(m)).score }));""",
        model,
        f"model{suffix}",
        list(data),
    )
    assert score == {"n": 10, "score": pytest.approx(solve(model, "exact").score, abs=TOLERANCE)}


def test_python_reads_the_uai_file_of_the_page(site_page: Any, tmp_path: Path) -> None:
    for model in (EXAMPLES["chain"].make(), random_model(5)):
        (tmp_path / "page.uai").write_text(on_page(site_page, "return p.writeUai(m);", model))
        back = read_model(tmp_path / "page.uai")
        x = np.random.default_rng(0).integers(0, model.cardinalities, (50, model.num_variables))
        np.testing.assert_allclose(back.score(x), model.score(x), atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"{", "a.json: Expected JSON"),
        ("a.uai", b"MARKOV\n2\n2 2\n1\n2 0 5\n4 1 1 1 1\n", "a.uai: word 8: Expected a variable below 2 (got 5)"),
        ("a.uai", b"MARKOV\n1\n", "a.uai: word 3: Expected a number of states (got the end)"),
        ("a.fgm", b"12345678", "a.fgm: Expected a whole safetensors file"),
        ("a.uai.gz", b"MARKOV", "a.uai.gz: Expected a whole gzip file"),
        ("a.exe", b"", "a.exe: Expected a file in"),
        ("a.bif", b"", "a.bif: this page has no server"),
    ],
)
def test_a_bad_file_is_named_in_one_line(site_page: Any, name: str, data: bytes, message: str) -> None:
    call = "return p.readFile(rest[0], new Uint8Array(rest[1])).then(() => '', (error) => error.message);"
    text = on_page(site_page, call, MODELS["paper"], name, list(data))
    assert text.startswith(message)
    assert "\n" not in text
