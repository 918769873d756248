"""Cost function networks: toulbar2's two formats and the upper bound."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fgnn import GraphicalModel, read_model
from fgnn.errors import InputError
from tests.pgm.io.samples import CFN, WCSP, swap


def read(folder: Path, name: str, data: bytes | str) -> GraphicalModel:
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return read_model(folder / name)


def test_a_wcsp_score_is_minus_the_cost(tmp_path: Path) -> None:
    model = read(tmp_path, "a.wcsp", WCSP)
    # by hand: f01 has default 1, f2 costs 3 at 1, a constant 2, f012 costs 7 at (1, 1, 1), f0 costs 5 at 1
    assert model.score([0, 0, 0]) == -(1 + 0 + 2 + 0 + 0)
    assert model.score([0, 2, 1]) == -(4 + 3 + 2 + 0 + 0)
    assert model.score([1, 1, 1]) == -(1 + 3 + 2 + 7 + 5)  # the sum exceeds the bound, but no entry does


def test_a_cost_that_reaches_the_bound_forbids(tmp_path: Path) -> None:
    assert read(tmp_path, "a.wcsp", WCSP).score([1, 0, 0]) == -math.inf


def test_a_shared_table_ignores_the_default_cost(tmp_path: Path) -> None:
    text = "t 3 2 3 9\n2 2 2\n-2 0 1 4 1\n0 1 3\n2 1 2 1 -1\n2 2 0 4 -1\n"
    model = read(tmp_path, "a.wcsp", text)
    assert [t.scope for t in model.tables()] == [(0, 1), (1, 2), (2, 0)]
    assert all(t.values.tolist() == [[-4, -3], [-4, -4]] for t in model.tables())


def test_an_interval_domain_has_its_states(tmp_path: Path) -> None:
    model = read(tmp_path, "a.wcsp", "t 2 5 1 99\n-5 3\n2 0 1 -1 >= 1 2\n")
    assert model.cardinalities.tolist() == [5, 3]
    assert [model.score(x) for x in ([1, 0], [0, 0], [0, 2])] == [0.0, -1.0, -math.inf]


def test_a_cfn_score_is_minus_the_cost(tmp_path: Path) -> None:
    model = read(tmp_path, "a.cfn", CFN)
    assert model.cardinalities.tolist() == [2, 3, 2]
    # f1(1, 2) = 6, c = q costs 2.5, shared(a, c) = later's table, later(c, a), at least one of a and c
    assert model.score([1, 2, 0]) == pytest.approx(-(6 + 0.5 + 2 + 1))
    assert model.score([0, 1, 1]) == pytest.approx(-(2 + 2.5 + 1 + 2))
    assert model.score([1, 0, 1]) == -math.inf  # 12 in two tables, above the bound
    assert model.score([0, 0, 0]) == -math.inf  # violates the knapsack
    (budget,) = model.budgets()
    assert (budget.scope, budget.at_least, budget.at_most) == ((0, 2), 1, 2)


def test_cfn_names_quotes_and_punctuation_are_optional(tmp_path: Path) -> None:
    terse = b"""[[test <10.0] [[x y] 3 [p q]]
    [ [[0 1] [1 2 3 4 5 6]] [[2] 0.5 [1 2.5]] [[0 2] later] later [[2 0] [0 1 2 12]] [[0 2] knapsack [1 [1 1]]] ] ]"""
    assert read(tmp_path, "b.cfn", terse) == read(tmp_path, "a.cfn", CFN)


def test_a_cfn_may_maximise(tmp_path: Path) -> None:
    text = "{problem: {name: m, mustbe: >-5.0} variables: {v: 2 w: 2} functions: {{scope: [] costs: [-6]} \
        {scope: [v] costs: [1 0.5]} {scope: [v w] costs: [-1 0.5 -2 5.5]}}}"
    model = read(tmp_path, "a.cfn", text)
    assert model.score([1, 1]) == pytest.approx(-6 + 0.5 + 5.5)
    assert model.score([0, 0]) == pytest.approx(-6 + 1 - 1)


def test_negative_costs_elsewhere_keep_an_entry_above_the_bound_possible(tmp_path: Path) -> None:
    text = "{{{m <5} [2 2] {[[] [GAIN]] [[0] [0 6]] [[0 1] [0 0 0 5]]}}".replace("{{{", "{{")
    gained = read(tmp_path, "a.cfn", text.replace("GAIN", "-2"))
    assert gained.score([1, 0]) == pytest.approx(-4.0)
    assert gained.score([1, 1]) == pytest.approx(-9.0)
    plain = read(tmp_path, "b.cfn", text.replace("GAIN", "0"))
    assert plain.score([1, 0]) == -math.inf
    assert plain.score([0, 1]) == 0.0


def test_a_state_may_be_named_or_numbered(tmp_path: Path) -> None:
    assert read(tmp_path, "a.cfn", swap(CFN, b"[q 2.5]", b"[1 2.5]")) == read(tmp_path, "b.cfn", CFN)
    assert read(tmp_path, "a.cfn", swap(CFN, b"[a b]", b"[0 1]")) == read(tmp_path, "b.cfn", CFN)


@pytest.mark.parametrize("top", [2**53 + 1, 2**53 + 2, 2**60 + 1, 9223372036854775807])
def test_integer_costs_beyond_53_bits_keep_their_side_of_the_bound(tmp_path: Path, top: int) -> None:
    text = f"t 1 4 1 {top}\n4\n1 0 {top - 3} 3\n0 {top - 1}\n1 {top}\n2 {top + 1}\n"
    model = read(tmp_path, "a.wcsp", text)
    below, at, above, default = (model.score([s]) for s in range(4))
    assert below == pytest.approx(-float(top), rel=1e-15)
    assert default == pytest.approx(-float(top), rel=1e-15)
    assert at == above == -math.inf


def test_costs_that_fit_are_exact_and_others_are_integers(tmp_path: Path) -> None:
    assert read(tmp_path, "a.wcsp", f"t 1 2 1 {2**62}\n2\n1 0 0 1\n1 {2**53 - 1}\n").score([1]) == -(2**53 - 1)
    with pytest.raises(InputError, match=r"tuple 0.*9\.1e18"):
        read(tmp_path, "b.wcsp", f"t 1 2 1 {2**62}\n2\n1 0 0 1\n1 9.1e18\n")


@pytest.mark.parametrize("spelled", ["inf", "+inf", "Infinity", '"inf"'])
def test_an_infinite_cost_forbids(tmp_path: Path, spelled: str) -> None:
    text = "{problem: {name: t mustbe: <10} variables: {a: 2 b: 2} functions: {f: {scope: [a b] costs: [0 1 2 INF]}}}"
    model = read(tmp_path, "a.cfn", text.replace("INF", spelled))
    assert [model.score([a, b]) for a in (0, 1) for b in (0, 1)] == [0.0, -1.0, -2.0, -math.inf]


def test_an_infinite_default_cost_and_bound(tmp_path: Path) -> None:
    model = read(tmp_path, "a.cfn", "{{t <inf} [2 2] {[[0 1] inf [0 1 3 1 0 1e90]]}}")
    assert [model.score([a, b]) for a in (0, 1) for b in (0, 1)] == [-math.inf, -3.0, -1e90, -math.inf]


def test_a_value_of_minus_infinity_forbids_where_the_file_maximises(tmp_path: Path) -> None:
    text = "{problem: {name: m, mustbe: >-inf} variables: {v: 3} functions: {{scope: [v] costs: [1 -inf 5]}}}"
    model = read(tmp_path, "a.cfn", text)
    assert [model.score([s]) for s in range(3)] == [1.0, -math.inf, 5.0]


@pytest.mark.parametrize(
    ("bound", "costs"), [("<9", "-inf"), (">-9", "inf"), ("<9", "nan"), ("<9", "1e999"), ("<-inf", "1"), (">inf", "1")]
)
def test_an_infinity_that_would_reward_is_refused(tmp_path: Path, bound: str, costs: str) -> None:
    with pytest.raises(InputError, match="Expected"):
        read(tmp_path, "a.cfn", f"{{{{t {bound}}} [2] {{[[0] [0 {costs}]]}}}}")
