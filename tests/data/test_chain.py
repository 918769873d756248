"""ChainMAP: the convention of the data, its labels, its streams and its files."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fgnn
from fgnn import ModelBatch
from fgnn.data import ChainMAP, load_models
from fgnn.errors import InputError
from tests.data.chain_by_hand import best_score

KINDS = (1, 2, 3)


def same(a: ModelBatch, b: ModelBatch) -> bool:
    mine = [a.unary, *(t.values for t in a.tables), *(u.at_most for u in a.budgets)]
    theirs = [b.unary, *(t.values for t in b.tables), *(u.at_most for u in b.budgets)]
    return all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_structure_is_pairs_and_windows_fully_inside(kind: int) -> None:
    batch = ChainMAP(kind).sample(3)
    assert batch.tables[0].scopes.tolist() == [[i, i + 1] for i in range(29)]
    assert batch.budgets[0].scopes.tolist() == [list(range(i, i + 8)) for i in range(23)]
    assert (batch.budgets[0].at_least == 0).all()
    assert batch.unary.shape == (3, 30, 2)


def test_the_authors_window_of_nine_gives_22_budgets() -> None:
    assert len(ChainMAP(window=9).sample(1).budgets[0].scopes) == 22


def test_numbers_follow_the_paper() -> None:
    first, second, third = (ChainMAP(kind).sample(4000) for kind in KINDS)
    for batch in (first, second, third):
        assert batch.unary.min() >= 0
        assert batch.unary.max() < 1
        assert batch.unary.mean() == pytest.approx(0.5, abs=0.005)
    assert first.tables[0].values[7, 3].tolist() == [[0.0, pytest.approx(0.1)], [pytest.approx(0.2), 1.0]]
    assert first.tables[0].values.stride(0) == 0  # shared, not copied
    assert (first.budgets[0].at_most == 5).all()
    assert (second.budgets[0].at_most == 5).all()
    for batch in (second, third):
        values = batch.tables[0].values
        assert values[..., 0, :].abs().max() == 0
        assert values[..., 1, 0].abs().max() == 0
        assert values[..., 1, 1].max() <= 2
        assert values[..., 1, 1].mean() == pytest.approx(1.0, abs=0.01)
    shares = torch.bincount(third.budgets[0].at_most.flatten(), minlength=9)[1:] / third.budgets[0].at_most.numel()
    assert shares.tolist() == pytest.approx([1 / 8] * 8, abs=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_optimal_by_an_independent_dynamic_programme(kind: int) -> None:
    data = ChainMAP(kind, length=14, window=5, budget=3)
    batch = data.sample(20, seed=kind)
    labels = data.labels(batch)
    assert labels.dtype == torch.int64
    scores = batch.score(labels)
    for b in range(len(batch)):
        assert scores[b].item() == pytest.approx(best_score(batch, b, window=5), abs=1e-9)


def test_a_seed_gives_the_same_models_and_another_seed_others() -> None:
    data = ChainMAP(3)
    assert same(data.sample(5, seed=4), data.sample(5, seed=4))
    assert same(data.sample(5, seed=4), data.sample(5, seed=4, source="cpu"))
    assert not same(data.sample(5, seed=4), data.sample(5, seed=5))


def test_a_stream_can_be_resumed_at_any_batch() -> None:
    data = ChainMAP(2)
    whole = list(itertools.islice(data.batches(4, seed=1), 4))
    later = list(itertools.islice(data.batches(4, seed=1, start=2), 2))
    assert same(whole[2], later[0])
    assert same(whole[3], later[1])
    assert not same(whole[0], whole[1])
    assert not same(whole[0], next(iter(data.batches(4, seed=2))))


def test_a_chain_may_be_one_window_and_one_variable_has_no_pairs() -> None:
    assert ChainMAP(length=8).sample(2).budgets[0].scopes.tolist() == [list(range(8))]
    alone = ChainMAP(length=1, window=1).sample(2)
    assert alone.tables == ()
    assert fgnn.solve(alone, "max-product").assignment.shape == (2, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": 4}, "kind of chain among 1, 2, 3"),
        ({"length": 0}, "length of at least 1"),
        ({"budget": 0}, "budget"),
        ({"length": 7}, r"Expected a window within the chain of 7 \(got a window of 8\)"),
    ],
)
def test_wrong_parameters_are_named(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChainMAP(**wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_set_is_loaded_unchanged(kind: int, tmp_path: Path) -> None:
    data = ChainMAP(kind, length=12, window=4, budget=2)
    written = data.save(tmp_path / "set", count=6, seed=3)
    read = ChainMAP.load(tmp_path / "set")
    assert read.family == data
    assert read.seed == 3
    assert same(read.batch, data.sample(6, seed=3))
    assert torch.equal(read.labels, data.labels(read.batch))
    assert torch.equal(read.labels, written.labels)
    assert (read.batch.tables[0].values.stride(0) == 0) == (kind == 1)


@dataclass(frozen=True)
class Doubled(ChainMAP):
    """A user-defined family."""

    def sample(self, *args: Any, **options: Any) -> ModelBatch:
        batch = super().sample(*args, **options)
        return replace(batch, unary=2 * batch.unary)


def test_a_user_defined_family_is_saved_too(tmp_path: Path) -> None:
    data = Doubled(length=10)
    read = data.save(tmp_path, count=3)
    assert read.family == data
    assert torch.equal(read.batch.unary, 2 * ChainMAP(length=10).sample(3).unary)
    with pytest.raises(InputError, match=r"expected a set of ChainMAP or GridMAP \(got Doubled\)"):
        load_models(tmp_path)


def test_a_broken_set_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dataset\.json: no such file"):
        load_models(tmp_path)
    ChainMAP(length=10).save(tmp_path, count=4)
    whole = (tmp_path / "models.safetensors").read_bytes()
    (tmp_path / "models.safetensors").write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"models\.safetensors: not a whole safetensors file"):
        load_models(tmp_path)
    about = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(about | {"family": "Tree"}))
    with pytest.raises(InputError, match=r"expected a set of ChainMAP or GridMAP \(got Tree\)"):
        load_models(tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(InputError, match="not a JSON file"):
        load_models(tmp_path)
