"""Noisy-MAX tables, against the definition by enumeration of the causes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from fgnn import read_model
from fgnn.errors import InputError
from fgnn.pgm.io.noisy_max import noisy_max


def by_causes(rows: list[list[np.ndarray]], leak: np.ndarray | None) -> np.ndarray:
    """P(child | parents): add up the probability of every combination of causes under its highest state."""
    states = len(rows[0][0])
    table = np.zeros((*(len(r) for r in rows), states))
    for x in itertools.product(*(range(len(r)) for r in rows)):
        given = [r[s] for r, s in zip(rows, x, strict=True)] + ([] if leak is None else [leak])
        for y in itertools.product(range(states), repeat=len(given)):
            table[(*x, max(y))] += math.prod(p[s] for p, s in zip(given, y, strict=True))
    return table


@pytest.mark.parametrize("with_leak", [False, True])
@pytest.mark.parametrize("with_zero", [False, True])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("parents", [(2, 3), (3, 2, 2), (4,)])
def test_it_is_the_distribution_of_the_highest_cause(
    parents: tuple[int, ...], columns: bool, with_zero: bool, with_leak: bool
) -> None:
    if len(parents) == 1 and with_leak != with_zero:
        pytest.skip("one parent: a leak in place of state 0 is the table itself")
    rng = np.random.default_rng(0)
    absent = np.eye(3)[0]
    rows = [[p if with_zero or s else absent for s, p in enumerate(rng.dirichlet(np.ones(3), k))] for k in parents]
    leak = rng.dirichlet(np.ones(3)) if with_leak else None
    given = [p for r in rows for p in r[not with_zero :]] + ([] if leak is None else [leak])
    numbers = np.array(given).T.ravel() if columns else np.array(given).ravel()
    np.testing.assert_allclose(noisy_max(numbers, parents, 3), by_causes(rows, leak), atol=1e-12)


def network(table: str) -> str:
    variables = "".join(f"variable {name} {{ type discrete [ 2 ] {{ no, yes }}; }}\n" for name in "abcd")
    priors = "".join(f"probability ( {name} ) {{ table 0.5, 0.5; }}\n" for name in "abc")
    return f"network n {{}}\n{variables}{priors}probability ( d | a, b, c ) {{ {table} }}\n"


def test_a_noisy_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "or.bif"
    # causes of d: a with 0.8, b with 0.5, c with 0.1; 0.05 without any
    file.write_text(network("property function max; table 0.2 0.8 0.5 0.5 0.9 0.1 0.95 0.05;"))
    values = np.exp(list(read_model(file).tables())[-1].values)
    assert values[1, 1, 0, 0] == pytest.approx(0.2 * 0.5 * 0.95)
    assert values[0, 0, 0, 1] == pytest.approx(0.05)
    assert values.sum(-1) == pytest.approx(np.ones((2, 2, 2)))


def test_the_property_may_follow_and_be_quoted(tmp_path: Path) -> None:
    for n, table in enumerate(("property function max; TABLE", 'TABLE property "function = max" ;')):
        text = network(table.replace("TABLE", "table 0.2 0.8 0.5 0.5 0.9 0.1 0.95 0.05;"))
        (tmp_path / f"{n}.bif").write_text(text)
    assert read_model(tmp_path / "0.bif") == read_model(tmp_path / "1.bif")


def test_a_whole_table_keeps_its_meaning(tmp_path: Path) -> None:
    whole = " ".join(["0.25"] * 8 + ["0.75"] * 8)
    (tmp_path / "a.bif").write_text(network(f"property function max; table {whole};"))
    (tmp_path / "b.bif").write_text(network(f"table {whole};"))
    assert read_model(tmp_path / "a.bif") == read_model(tmp_path / "b.bif")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("table 0.2 0.8 0.5;", "'d'.*16 probabilities.*3"),
        ("table 0.2 0.9 0.5 0.5 0.9 0.1 0.95 0.05;", "'d'.*sum to 1"),
        ("table 0.5 0.2 0.3 0.6 0.4 0.1 0.9;", "'d'.*probabilities.*7"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, table: str, message: str) -> None:
    (tmp_path / "a.bif").write_text(network(f"property function max; {table}"))
    with pytest.raises(InputError, match=message):
        read_model(tmp_path / "a.bif")
