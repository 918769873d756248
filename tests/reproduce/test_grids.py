"""The grid experiment, and the integer program it compares with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fgnn import solve
from fgnn.data import ChainMAP, GridMAP
from fgnn.errors import InputError
from fgnn.models.map.config import NetworkConfig
from fgnn.reproduce import grids
from fgnn.reproduce.experiment import Setting
from fgnn.reproduce.milp import solve_milp
from fgnn.tasks.data_settings import Data, GridData
from fgnn.train.run import run
from fgnn.train.run_folder import RunFolder
from tests.tasks.helpers import small_recipe


@pytest.mark.parametrize("data", [GridMAP(3, 4), ChainMAP(3, 9, 4), ChainMAP(1, 8, 4, 2)])
def test_the_integer_program_is_exact(data: GridMAP | ChainMAP) -> None:
    batch = data.sample(6, seed=2, dtype=torch.float64)
    torch.testing.assert_close(batch.score(solve_milp(batch)[0]), solve(batch, "exact").score, atol=1e-6, rtol=1e-6)


def test_the_experiment_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)
    recipe = small_recipe(
        data=Data(grid=GridData(3, 4)), network=NetworkConfig("deep", width=8, blocks=2, bases=2), validation=16
    )
    _, folder = run(recipe, tmp_path / "run", device="cpu")
    methods = {
        k: v for k, v in grids._methods(str(folder.path)).items() if k.startswith(("FGNN", "MILP", "max-product +"))
    }
    monkeypatch.setattr(grids, "_methods", lambda weights: methods)
    real = grids.race
    monkeypatch.setattr(grids, "race", lambda size, limit, *rest: real(size // 5, 0.2, *rest))
    output = grids.reproduce_grids(
        Setting(quick=True, instances=10), tmp_path / "out", lambda text: None, weights=str(folder.path)
    )
    by_name = {cell.method: cell.quality for cell in output.cells}
    assert by_name["MILP (HiGHS)"].optimal == 1.0
    assert by_name["FGNN + decode"].feasible == 1.0
    assert by_name["FGNN + decode + refine"].optimal >= by_name["FGNN + decode"].optimal
    times = {cell.method: cell.ms for cell in output.cells}
    # the first call of a search builds tables, which a limit of milliseconds does not count
    assert times["max-product + decode + refine"] < 2 * times["FGNN + decode + refine"] + 100
    assert "best of all" in (tmp_path / "out" / "grids.md").read_text()


def test_missing_weights_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "weight_names", list)
    with pytest.raises(InputError, match="weights deep-grid"):
        grids.reproduce_grids(Setting(quick=True), tmp_path, print)
