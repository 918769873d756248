"""The native format is lossless."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fgnn import GraphicalModel, read_model, write_model
from fgnn.errors import InputError
from tests.strategies import models


@given(models(), st.sampled_from([".fgm", ".fgm.gz", ".fgm.xz", ".FGM"]), st.floats(allow_nan=False, max_value=1e300))
def test_a_model_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, model: GraphicalModel, suffix: str, constant: float
) -> None:
    model.constant = constant
    path = tmp_path_factory.mktemp("fgm") / f"a{suffix}"
    write_model(model, path)
    twin = read_model(path)
    assert twin == model
    assert [t.scope for t in twin.tables()] == [t.scope for t in model.tables()]


def test_floats_are_stored_exactly(tmp_path: Path) -> None:
    values = np.array([[0.1, 1 / 3, 5e-324], [-1.7976931348623157e308, -np.inf, math.pi]])
    model = GraphicalModel([2, 3])
    model.add_table((0, 1), values)
    write_model(model, tmp_path / "a.fgm")
    (table,) = read_model(tmp_path / "a.fgm").tables()
    assert table.values.tobytes() == values.tobytes()


def test_factors_of_alternating_shapes_keep_their_order(tmp_path: Path) -> None:
    model = GraphicalModel([2, 2, 3, 2])
    for scope in ((0, 1), (0, 2), (1, 3), (2, 0), (3, 0), (0, 1)):
        model.add_table(scope, np.random.default_rng(len(scope)).normal(size=model.cardinalities[list(scope)]))
    for scope in ((0, 1), (0, 1, 3), (1, 3)):
        model.add_budget(scope, at_most=1)
    write_model(model, tmp_path / "a.fgm")
    twin = read_model(tmp_path / "a.fgm")
    assert twin == model
    assert [b.scope for b in twin.budgets()] == [(0, 1), (0, 1, 3), (1, 3)]


def test_a_budget_over_many_variables_stays_small(tmp_path: Path) -> None:
    model = GraphicalModel([2] * 5000)
    model.add_budget(range(5000), at_most=3)
    write_model(model, tmp_path / "a.fgm")
    assert (tmp_path / "a.fgm").stat().st_size < 300_000
    assert read_model(tmp_path / "a.fgm") == model


def test_an_empty_model_comes_back(tmp_path: Path) -> None:
    write_model(GraphicalModel([]), tmp_path / "a.fgm")
    assert read_model(tmp_path / "a.fgm") == GraphicalModel([])


def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), [[0.0, 1.0], [2.0, 3.0]])
    for name in ("a.fgm", "a.fgm.gz", "a.fgm.xz", "a.uai.gz"):
        write_model(model, tmp_path / name)
        once = (tmp_path / name).read_bytes()
        write_model(model, tmp_path / name)
        assert (tmp_path / name).read_bytes() == once


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.uai"
    path.write_text("old")
    model = GraphicalModel([2] * 20)
    model.add_budget(range(20), at_most=1)
    with pytest.raises(InputError):
        write_model(model, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.uai"]


@pytest.mark.parametrize("name", ["a.bif", "a.fg", "a.wcsp", "a.cfn", "a.txt", "a", "a.gz"])
def test_a_read_only_format_is_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}.*\.fgm, \.uai"):
        write_model(GraphicalModel([2]), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        write_model(GraphicalModel([2]), tmp_path / "none" / "a.fgm")
