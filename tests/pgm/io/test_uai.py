"""UAI files: the meaning of the numbers, and round trips."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fgnn
from fgnn import GraphicalModel, read_model, write_model
from fgnn.errors import InputError
from fgnn.pgm.io import uai
from fgnn.pgm.io.stream import BLOCK
from tests.pgm.io.samples import UAI
from tests.strategies import models


def put(folder: Path, name: str, data: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def assignments(model: GraphicalModel) -> np.ndarray:
    return np.array(list(itertools.product(*(range(k) for k in model.cardinalities))), dtype=np.int64)


def test_the_last_variable_of_a_scope_varies_fastest(tmp_path: Path) -> None:
    model = read_model(put(tmp_path, "a.uai", UAI))
    assert model.cardinalities.tolist() == [2, 3, 2]
    # by hand: phi_0 phi_01 phi_210 / 4 at (x0, x1, x2) = (1, 2, 0) and (0, 1, 1)
    assert model.score([1, 2, 0]) == pytest.approx(math.log(1.5 * 6 * 6 * 0.25))
    assert model.score([0, 1, 1]) == pytest.approx(math.log(0.5 * 2 * 9 * 0.25))
    scopes = [t.scope for t in model.tables()]
    assert scopes == [(0, 1), (2, 1, 0)]


def test_a_bayesian_network_is_the_product_of_its_tables(tmp_path: Path) -> None:
    # P(x0) P(x1 | x0) P(x2 | x1): the child is last in its scope
    text = "BAYES 3 2 2 2 3  1 0  2 0 1  2 1 2   2 .3 .7   4 .9 .1 .4 .6   4 .5 .5 .2 .8"
    model = read_model(put(tmp_path, "a.uai", text))
    assert model.score([1, 0, 1]) == pytest.approx(math.log(0.7 * 0.4 * 0.5))
    assert np.exp(model.score(assignments(model))).sum() == pytest.approx(1.0)


def test_zero_becomes_minus_infinity(tmp_path: Path) -> None:
    model = read_model(put(tmp_path, "a.uai", "MARKOV 2 2 2 1 2 0 1 4 1 0 0 1"))
    assert [model.score(x) for x in ([0, 0], [0, 1])] == [0.0, -math.inf]


@pytest.mark.parametrize("evidence", ["2 0 1 1 2", "1\n2 0 1 1 2\n", " 2\n0 1\n1 2"])
def test_evidence_is_plain_or_one_sample(tmp_path: Path, evidence: str) -> None:
    path = put(tmp_path, "a.uai", UAI)
    model = read_model(path, evidence=put(tmp_path, "a.uai.evid", evidence))
    assert model == read_model(path).condition({0: 1, 1: 2})
    assert model == read_model(path, evidence={0: 1, 1: 2})
    assert model.score([0, 2, 0]) == -math.inf


@pytest.mark.parametrize("evidence", ["0", "1 0", "0\n"])
def test_no_evidence_changes_nothing(tmp_path: Path, evidence: str) -> None:
    path = put(tmp_path, "a.uai", UAI)
    assert read_model(path, evidence=put(tmp_path, "e.evid", evidence)) == read_model(path)


def test_one_observation_is_not_mistaken_for_a_sample_count(tmp_path: Path) -> None:
    path = put(tmp_path, "a.uai", UAI)
    for text in ("1 1 2", "1 1 1 2"):
        assert read_model(path, evidence=put(tmp_path, "e.evid", text)) == read_model(path).condition({1: 2})


def test_evidence_as_a_mapping_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="evidence: Expected a state below 3 for variable 1"):
        read_model(put(tmp_path, "a.uai", UAI), evidence={1: 3})


@given(models(), st.sampled_from([".uai", ".uai.gz", ".uai.xz"]), st.floats(-2000, 2000))
def test_a_written_file_scores_the_same(tmp_path_factory: pytest.TempPathFactory, model: GraphicalModel, suffix: str, constant: float) -> None:  # fmt: skip  # noqa: E501
    model.constant = constant
    path = tmp_path_factory.mktemp("uai") / f"a{suffix}"
    write_model(model, path)
    x = np.random.default_rng(0).integers(0, model.cardinalities, size=(64, model.num_variables))
    np.testing.assert_allclose(read_model(path).score(x), model.score(x), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("scale", [1.0, 300.0, 1000.0, 5000.0])
def test_large_log_potentials_survive_the_exponential(tmp_path: Path, scale: float) -> None:
    rng = np.random.default_rng(1)
    model = GraphicalModel([3, 4])
    model.add_unary(0, rng.normal(size=3) * scale)
    values = rng.uniform(-1, 1, size=(3, 4)) * scale
    values[1, 2] = -np.inf
    model.add_table((0, 1), values)
    write_model(model, tmp_path / "a.uai")
    x = assignments(model)
    read = read_model(tmp_path / "a.uai").score(x)
    np.testing.assert_allclose(read, model.score(x), rtol=1e-12, atol=1e-12 * scale)
    assert (np.isfinite(read) == np.isfinite(model.score(x))).all()


def test_probabilities_are_written_as_they_were_read(tmp_path: Path) -> None:
    model = read_model(put(tmp_path, "a.uai", "MARKOV 1 2 1 1 0 2 0.25 0.125"))
    write_model(model, tmp_path / "b.uai")
    written = [float(word) for word in (tmp_path / "b.uai").read_text().split()[-2:]]
    assert written == pytest.approx([0.25, 0.125], rel=1e-15)


def test_a_small_budget_becomes_a_table_and_a_large_one_is_refused(tmp_path: Path) -> None:
    model = GraphicalModel([2] * 17)
    model.add_budget(range(16), at_most=3, at_least=1)
    write_model(model, tmp_path / "a.uai")
    x = np.random.default_rng(2).integers(0, 2, size=(500, 17)) * (np.arange(17) % 3 == 0)
    assert (read_model(tmp_path / "a.uai").score(x) == model.score(x)).all()
    model.add_budget(range(17), at_most=3)
    with pytest.raises(InputError, match=r"b\.uai: budget 1: .*16 variables.*\.fgm"):
        write_model(model, tmp_path / "b.uai")
    assert not (tmp_path / "b.uai").exists()


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda m: m.add_table((0, 1), [[0.0, 1e6], [0.0, 0.0]]), "table 0: .*fgm"),
        (lambda m: setattr(m, "constant", 1e9), "constant: .*fgm"),
        (lambda m: m.add_unary(1, [0.0, -1e9]), "unary 1: .*fgm"),
    ],
)
def test_a_model_beyond_the_uai_format_is_refused_with_advice(
    tmp_path: Path, build: Callable[[GraphicalModel], object], what: str
) -> None:
    model = GraphicalModel([2, 2])
    build(model)
    with pytest.raises(InputError, match=what):
        write_model(model, tmp_path / "a.uai")
    assert list(tmp_path.iterdir()) == []


def test_an_infeasible_model_stays_infeasible(tmp_path: Path) -> None:
    model = GraphicalModel([2])
    model.constant = -math.inf
    write_model(model, tmp_path / "a.uai")
    assert read_model(tmp_path / "a.uai").score([0]) == -math.inf


def test_a_model_without_variables_survives(tmp_path: Path) -> None:
    model = GraphicalModel([])
    model.constant = 1.5
    write_model(model, tmp_path / "a.uai")
    assert read_model(tmp_path / "a.uai").score([]) == pytest.approx(1.5)


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
def test_words_may_cross_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    rng = np.random.default_rng(3)
    model = GraphicalModel(rng.integers(1, 4, size=30))
    for _ in range(60):
        scope = rng.permutation(30)[: rng.integers(2, 5)]
        model.add_table(scope.tolist(), rng.normal(size=model.cardinalities[scope]))
    write_model(model, tmp_path / "a.uai")
    monkeypatch.setattr("fgnn.pgm.io.stream.BLOCK", block)
    twin = read_model(tmp_path / "a.uai")
    assert [t.scope for t in twin.tables()] == [t.scope for t in model.tables()]
    x = rng.integers(0, model.cardinalities, size=(50, 30))
    np.testing.assert_allclose(twin.score(x), model.score(x), rtol=1e-12)


def test_many_tables_are_grouped_by_shape_and_score_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    model = GraphicalModel(rng.integers(2, 4, size=40))
    for _ in range(300):
        scope = rng.permutation(40)[: rng.integers(1, 4)]
        model.add_table(scope.tolist(), rng.normal(size=model.cardinalities[scope]))
    write_model(model, tmp_path / "a.uai")
    monkeypatch.setattr(uai, "KEEP_ORDER", 10)
    monkeypatch.setattr(uai, "_BATCH", 500)
    twin = read_model(tmp_path / "a.uai")
    assert twin.num_tables == model.num_tables
    x = rng.integers(0, model.cardinalities, size=(50, 40))
    np.testing.assert_allclose(twin.score(x), model.score(x), rtol=1e-12)


def test_the_functions_are_exported_at_the_top() -> None:
    assert fgnn.read_model is read_model
    assert fgnn.write_model is write_model


def test_comments_may_stand_anywhere_and_long_lines_still_cross_blocks(tmp_path: Path) -> None:
    plain = "MARKOV\n2\n2 2\n1\n2 0 1\n4 1 2 3 4\n"
    commented = "# by hand\nMARKOV # kind\n2\n2 2#sizes\n1\n2 0 1\n# 7 8\n4\n1 2 # row 0\n3 4 # row 1"
    for name, text in (("a", plain), ("b", commented)):
        (tmp_path / f"{name}.uai").write_text(text)
    assert read_model(tmp_path / "a.uai") == read_model(tmp_path / "b.uai")
    # one line of more than two blocks, with a comment that begins in the last
    many = 600_000
    body = f"MARKOV 1 {many} 1 1 0 {many} " + " ".join(["1.5"] * many)
    (tmp_path / "long.uai").write_text(body + " # the end " + "x" * 1000)
    assert read_model(tmp_path / "long.uai").unaries.tolist() == pytest.approx([math.log(1.5)] * many)


@pytest.mark.parametrize("before", range(-30, 3))
def test_a_comment_that_crosses_the_end_of_a_block_is_one_comment(tmp_path: Path, before: int) -> None:
    text = b"MARKOV 1 2 ".ljust(BLOCK + before, b"\n") + b"# 3 3 3 3 3 3 3 3 3 3 3 #\n1 1 0 # 4\n2 5 7\n"
    (tmp_path / "a.uai").write_bytes(text)
    assert np.exp(read_model(tmp_path / "a.uai").unaries).tolist() == pytest.approx([5.0, 7.0])


def test_evidence_may_have_comments(tmp_path: Path) -> None:
    (tmp_path / "a.uai").write_text("MARKOV 2 2 2 1 2 0 1 4 1 2 3 4")
    (tmp_path / "a.evid").write_text("1 # one observation\n1 0")
    observed = read_model(tmp_path / "a.uai", evidence=tmp_path / "a.evid")
    assert observed.score([0, 1]) == -math.inf
