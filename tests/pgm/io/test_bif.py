"""Bayesian networks in the interchange format."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel, read_model
from tests.pgm.io.samples import BIF, swap


def read(folder: Path, data: bytes) -> GraphicalModel:
    (folder / "a.bif").write_bytes(data)
    return read_model(folder / "a.bif")


def test_the_score_is_the_log_of_the_joint_probability(tmp_path: Path) -> None:
    model = read(tmp_path, BIF)
    assert model.cardinalities.tolist() == [2, 3]
    assert model.score([0, 2]) == pytest.approx(math.log(0.2 * 0.6))
    assert model.score([1, 0]) == pytest.approx(math.log(0.8 * 0.9))
    assert model.score([1, 2]) == -math.inf


def test_a_table_runs_over_the_child_first_and_then_the_parents(tmp_path: Path) -> None:
    rows = b"\n  (yes) 0.1, 0.3, 0.6;\n  (no) 0.9, 0.1, 0.0;\n"
    table = swap(BIF, rows, b" table 0.1, 0.9, 0.3, 0.1, 0.6, 0.0; ")
    assert read(tmp_path, table) == read(tmp_path, BIF)


def test_a_default_row_replaces_missing_rows(tmp_path: Path) -> None:
    data = swap(BIF, b"(no) 0.9, 0.1, 0.0;", b"default 0.9, 0.1, 0.0;")
    assert read(tmp_path, data) == read(tmp_path, BIF)


def test_rows_name_the_parents_states_in_the_order_of_the_block(tmp_path: Path) -> None:
    data = (
        BIF
        + b"""variable Slip { type discrete [ 2 ] { yes, no }; }
    probability ( Slip | Wet, Rain ) {
      (dry, yes) 0.1, 0.9; (damp, yes) 0.2, 0.8; (soaked, yes) 0.3, 0.7;
      (dry, no) 0.4, 0.6; (damp, no) 0.5, 0.5; (soaked, no) 0.6, 0.4;
    }"""
    )
    model = read(tmp_path, data)
    slip = list(model.tables())[-1]
    assert slip.scope == (1, 0, 2)
    assert math.exp(slip.values[2, 0, 1]) == pytest.approx(0.7)  # soaked, yes: no slip
    states = np.array(list(itertools.product(*map(range, model.cardinalities))))
    assert np.exp(model.score(states)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(yes) 0.1, 0.3, 0.6;", b'("yes") 0.1 0.3 0.6;'),
        (b"(yes) 0.1, 0.3, 0.6;", b"(yes) /* given\n rain */ 0.1, 0.3, 0.6;"),
        (b"{ yes, no }", b'{ "yes" "no" }'),
        (b"network test {", b"network {"),
        (b"probability ( Wet | Rain )", b"probability(Wet|Rain)"),
        (b"probability ( Wet | Rain )", b"probability ( Wet , Rain )"),
    ],
)
def test_optional_syntax(tmp_path: Path, old: bytes, new: bytes) -> None:
    assert read(tmp_path, swap(BIF, old, new)) == read(tmp_path, BIF)
