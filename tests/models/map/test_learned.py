"""`method="fgnn"`: network and decoding behind `solve`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fgnn
from fgnn import GraphicalModel, ModelBatch
from fgnn.data import ChainMAP
from fgnn.errors import InputError
from fgnn.models.map.learned import load_network
from fgnn.train.run import run
from fgnn.train.run_folder import RunFolder
from fgnn.weights import Card, save_weights
from tests.tasks.helpers import CHAIN, small_recipe

DATA = ChainMAP(1, CHAIN.length, CHAIN.window, CHAIN.budget)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    patch = pytest.MonkeyPatch()
    patch.setattr(RunFolder, "draw", lambda self: None)
    _, made = run(small_recipe(steps=60, batch=64), tmp_path_factory.mktemp("run") / "run", device="cpu")
    patch.undo()
    return made.path


def test_solves_one_model_and_a_batch(folder: Path) -> None:
    batch = DATA.sample(40, seed=9)
    found = fgnn.solve(batch, "fgnn", weights=str(folder))
    assert found.feasible.all()
    assert found.method == "fgnn"
    best = fgnn.solve(batch, "exact")
    assert (found.score <= best.score + 1e-6).all()
    assert (found.score >= best.score - 1e-6).double().mean() > 0.5
    one = fgnn.solve(batch.model(3), "fgnn", weights=str(folder))
    assert one.score == pytest.approx(float(found.score[3]), abs=1e-5)
    assert one.status == "feasible"


def test_decoding_never_lowers_the_score_and_repairs_infeasible_answers(folder: Path) -> None:
    batch = DATA.sample(200, seed=10)
    raw = fgnn.solve(batch, "fgnn", weights=str(folder), decode=False)
    decoded = fgnn.solve(batch, "fgnn", weights=str(folder))
    assert (decoded.score >= raw.score).all()
    assert not raw.feasible.all()
    assert decoded.feasible.all()


def test_models_of_other_families_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"weights .*: variables of 2 states \(got 3\)"):
        fgnn.solve(GraphicalModel([3, 3]), "fgnn", weights=str(folder))
    odd = GraphicalModel([3] * 4)
    odd.add_table((0, 1, 2), np.zeros((3, 3, 3)))
    with pytest.raises(ValueError, match="family of the packaged weights"):
        fgnn.solve(odd, "fgnn")


def test_weights_of_other_networks_are_refused(tmp_path: Path, folder: Path) -> None:
    save_weights(tmp_path / "w.safetensors", {"w": torch.zeros(2)}, {"name": "w", "task": "points"})
    with pytest.raises(InputError, match=r"Expected weights of a MAP network \(got points\)"):
        load_network(tmp_path / "w.safetensors")
    _, card = load_network(folder)
    save_weights(tmp_path / "v.safetensors", {"w": torch.zeros(2)}, card)
    with pytest.raises(InputError, match="tensors of the network on the card"):
        load_network(tmp_path / "v.safetensors")


def test_large_batches_are_scored_in_slices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fgnn.models.map import learned

    network, _ = load_network(folder)
    batch = DATA.sample(20, seed=11)
    whole = learned.score(network, batch)
    monkeypatch.setattr(learned, "_ENTRIES", 200)
    torch.testing.assert_close(learned.score(network, batch), whole, atol=1e-6, rtol=1e-5)
    assert learned.score(network, ModelBatch.stack([batch.model(0)])).shape == (1, CHAIN.length, 2)


def test_weights_trained_on_similar_models_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    from fgnn.data import GridMAP
    from fgnn.models.map import learned
    from fgnn.models.map.family import Family
    from fgnn.schema import plain

    def card(data: ChainMAP | GridMAP, optimal: float, fixed: tuple[str, ...] = ()) -> dict[str, object]:
        family = Family.of(data.sample(2), any_size=not fixed, fixed=fixed)
        return {"task": "map", "family": plain(family), "results": {"any": {"decoded": {"optimal": optimal}}}}

    cards = {
        "chains": card(ChainMAP(2), 0.98),
        "grids": card(GridMAP(6, 6), 0.8),
        "paper-1": card(ChainMAP(1), 0.99, ("budget", "table2x2")),
        "points": {"task": "points"},
    }
    monkeypatch.setattr(learned, "weight_names", lambda: sorted(cards))
    monkeypatch.setattr(learned, "read_card", lambda name: Card(cards[name], name))
    assert learned.choose_weights(ChainMAP(1).sample(1)) == "paper-1"
    for data in (ChainMAP(2), ChainMAP(3, 60), ChainMAP(1, 30, 10)):
        assert learned.choose_weights(data.sample(1)) == "chains"
    for grid in (GridMAP(20, 20), GridMAP(8, 8, (3, 3))):
        assert learned.choose_weights(grid.sample(1)) == "grids"
