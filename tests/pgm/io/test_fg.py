"""libDAI factor graphs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fgnn import GraphicalModel, read_model
from tests.pgm.io.samples import FG


def read(folder: Path, data: bytes) -> GraphicalModel:
    (folder / "a.fg").write_bytes(data)
    return read_model(folder / "a.fg")


def test_the_first_variable_of_a_scope_varies_fastest(tmp_path: Path) -> None:
    model = read(tmp_path, FG)
    assert model.cardinalities.tolist() == [2, 3]
    # entry 3 of the first factor is x0 = 1, x1 = 1; entry 4 is x0 = 0, x1 = 2
    assert model.score([1, 2]) == pytest.approx(math.log(6 * 1.5))
    assert model.score([0, 2]) == pytest.approx(math.log(5 * 1.5))
    assert model.score([1, 0]) == pytest.approx(math.log(2 * 0.5))


def test_unlisted_entries_are_zero(tmp_path: Path) -> None:
    model = read(tmp_path, FG)
    assert model.score([0, 1]) == -math.inf


def test_variables_are_sorted_by_label(tmp_path: Path) -> None:
    model = read(tmp_path, b"1\n\n2\n70 5\n2 3\n1\n5 2.0\n")  # entry 5: label 70 in state 1, label 5 in state 2
    assert model.cardinalities.tolist() == [3, 2]
    assert model.score([2, 1]) == pytest.approx(math.log(2))
    assert model.score([2, 0]) == -math.inf


def test_comments_may_stand_between_factors(tmp_path: Path) -> None:
    assert read(tmp_path, FG.replace(b"\n\n1\n1\n", b"\n# another\n\n1\n1 # label\n")) == read(tmp_path, FG)


def test_a_factor_without_variables_is_a_constant(tmp_path: Path) -> None:
    model = read(tmp_path, b"2\n\n0\n\n\n1\n0 2.5\n\n1\n0\n2\n2\n0 1\n1 1\n")
    assert model.score([0]) == pytest.approx(math.log(2.5))
