"""GridMAP: structure, labels, and that it is not already solved by relaxations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fgnn
from fgnn.data import ChainMAP, GridMAP
from fgnn.errors import InputError


def test_the_structure_is_a_grid_with_a_budget_on_every_patch() -> None:
    batch = GridMAP(3, 4, patch=(2, 3)).sample(2)
    pairs = {tuple(p) for p in batch.tables[0].scopes.tolist()}
    right = {(4 * r + c, 4 * r + c + 1) for r in range(3) for c in range(3)}
    below = {(4 * r + c, 4 * r + c + 4) for r in range(2) for c in range(4)}
    assert pairs == right | below
    patches = [sorted(4 * (r + dr) + c + dc for dr in range(2) for dc in range(3)) for r in range(2) for c in range(2)]
    assert batch.budgets[0].scopes.tolist() == patches


def test_numbers_are_as_described() -> None:
    batch = GridMAP(6, 6, coupling=2.0, field=0.5).sample(2000)
    assert batch.unary.std().item() == pytest.approx(0.5, abs=0.01)
    values = batch.tables[0].values
    assert torch.equal(values[..., 0, 0], values[..., 1, 1])
    assert torch.equal(values[..., 0, 1], -values[..., 0, 0])
    assert (2 * values[..., 0, 0]).std().item() == pytest.approx(2.0, abs=0.02)
    assert batch.budgets[0].at_most.unique().tolist() == [2, 3, 4]
    assert GridMAP(patch=(3, 3)).allowed == (3, 6)


def test_labels_are_those_of_brute_force() -> None:
    data = GridMAP(3, 4, patch=(2, 2))
    batch = data.sample(10, seed=1)
    expected = fgnn.solve(batch, "brute-force")
    torch.testing.assert_close(batch.score(data.labels(batch)), expected.score)


def test_damped_max_product_is_not_enough() -> None:
    data = GridMAP()
    batch = data.sample(60, seed=2)
    best = batch.score(data.labels(batch))
    solution = fgnn.solve(batch, "max-product")
    assert (solution.score > best - 1e-6).float().mean() < 0.3


def test_a_saved_set_is_loaded_unchanged(tmp_path: Path) -> None:
    data = GridMAP(4, 4, patch=(2, 3), stride=(2, 1))
    data.save(tmp_path, count=3, seed=8)
    read = GridMAP.load(tmp_path)
    assert read.family == data
    assert torch.equal(read.batch.unary, data.sample(3, seed=8).unary)
    assert torch.equal(read.labels, data.labels(read.batch))
    with pytest.raises(InputError, match="expected a set of ChainMAP"):
        ChainMAP.load(tmp_path)


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(ValueError, match="height of at least 1"):
        GridMAP(height=0)
    with pytest.raises(ValueError, match="rows and columns of a patch"):
        GridMAP(patch=(0, 3))
    for height, width in ((1, 3), (2, 2)):
        with pytest.raises(ValueError, match=f"patches within the grid of {height} x {width} .got patches of 2 x 3"):
            GridMAP(height, width)
