"""Training data of the MAP task: seeds, shares, labels, folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fgnn
from fgnn import GraphicalModel
from fgnn.bench.anytime.families import glass
from fgnn.data import ChainMAP
from fgnn.errors import InputError
from fgnn.runtime.distributed import World
from fgnn.tasks.labelled_models import Endless, Examples, FixedSet, Grouped, draw
from fgnn.tasks.map import draw_many, map_loss, union
from fgnn.tasks.metrics import Quality
from fgnn.tasks.model_folder import folder_recipe, read_folder, split
from fgnn.train.run import run
from fgnn.train.run_folder import RunFolder

CPU = torch.device("cpu")
SETS = [ChainMAP(k, 8, 4, 2) for k in (1, 2, 3)]


def test_step_and_seed_determine_the_batch() -> None:
    source = Endless(SETS, 12, seed=5, world=World(), device=CPU)
    first, again, other = source.batch(3), Endless(SETS, 12, 5, World(), CPU).batch(3), source.batch(4)
    assert torch.equal(first.models.unary, again.models.unary)
    assert not torch.equal(first.models.unary, other.models.unary)
    assert torch.equal(first.labels, fgnn.solve(first.models, "exact").assignment)
    assert other.models.budgets[0].scopes is first.models.budgets[0].scopes  # a structure is read once


def test_the_shares_of_all_processes_make_up_the_batch() -> None:
    whole = Endless(SETS[:2], 8, 5, World(), CPU).batch(0)
    parts = [Endless(SETS[:2], 8, 5, World(rank, 2), CPU).batch(0) for rank in range(2)]
    together = torch.cat([torch.cat([p.models.unary[k * 2 : k * 2 + 2] for p in parts]) for k in range(2)])
    assert torch.equal(together, whole.models.unary)
    with pytest.raises(ValueError, match="Expected a batch divisible by the 2 kinds and 3 processes"):
        Endless(SETS[:2], 8, 5, World(0, 3), CPU)


def test_an_epoch_of_a_fixed_set_visits_every_instance_once() -> None:
    examples = draw(SETS[:1], 12, 0, CPU)
    source = FixedSet(examples, 4, seed=1, world=World())
    assert source.epoch_steps == 3
    epochs = [torch.cat([source.batch(e * 3 + s).models.unary[:, 0, 0] for s in range(3)]) for e in range(2)]
    for visited in epochs:
        assert torch.equal(visited.sort().values, examples.models.unary[:, 0, 0].sort().values)
    assert not torch.equal(*epochs)
    with pytest.raises(ValueError, match="Expected at least a batch of 20 instances"):
        FixedSet(examples, 20, 1, World())


def test_structures_take_turns_in_proportion_to_their_size() -> None:
    sets = [draw([ChainMAP(1, n, 4, 2)], count, 0, CPU) for n, count in ((8, 12), (10, 4))]
    source = Grouped(sets, batch=4, seed=2)
    assert source.epoch_steps == 4
    sizes = [source.batch(s).models.num_variables for s in range(8)]
    assert sorted(sizes[:4]) == sorted(sizes[4:]) == [8, 8, 8, 10]


def test_sets_for_different_purposes_are_disjoint() -> None:
    train = Endless(SETS[:1], 64, 0, World(), CPU).batch(0).models.unary
    test = draw_many(SETS[:1], 64, 0, "test", CPU).models.unary
    assert not set(train[:, 0, 0].tolist()) & set(test[:, 0, 0].tolist())


def test_quality_by_hand() -> None:
    model = GraphicalModel([2, 2])
    model.add_unary(0, [0.0, 1.0])
    model.add_unary(1, [0.0, 0.5])
    model.add_budget((0, 1), at_most=1)
    batch = fgnn.ModelBatch.stack([model] * 4)
    labels = torch.tensor([[1, 0]] * 4)
    answer = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]])
    quality = Quality.of(batch, answer, labels)
    assert quality.agreement == pytest.approx((2 + 0 + 1 + 1) / 8)
    assert (quality.optimal, quality.feasible) == (0.25, 0.75)
    assert quality.gap == pytest.approx((0 + 0.5 + 1.0) / 3)
    assert quality.deviation is None  # fewer than two batches of 32 have none
    assert Quality.of(batch.select(slice(0, 1)), answer[2:3], labels[:1]).gap is None  # nor has what is infeasible


def test_the_deviation_is_over_batches_of_32() -> None:
    batch = fgnn.ModelBatch.stack([GraphicalModel([2])] * 64)
    answer = torch.cat([torch.zeros(32, 1), torch.ones(32, 1)]).long()
    quality = Quality.of(batch, answer, torch.zeros(64, 1, dtype=torch.int64))
    assert quality.deviation == pytest.approx(np.std([1.0, 0.0], ddof=1))


def test_inner_readouts_add_to_the_loss_but_not_to_the_agreement() -> None:
    labels = torch.tensor([[0, 1]])
    good, bad = torch.tensor([[[5.0, 0.0], [0.0, 5.0]]]), torch.tensor([[[0.0, 5.0], [5.0, 0.0]]])
    alone, both = map_loss(good, labels, 0.5), map_loss(torch.stack([bad, good]), labels, 0.5)
    assert alone.correct == both.correct == 1
    assert both.loss == pytest.approx(float(alone.loss) + 0.5 * float(map_loss(bad, labels).loss))


# ---- folders of models -----------------------------------------------------------------------------------------------


def _write_models(folder: Path, count: int = 10) -> None:
    rng = np.random.default_rng(0)
    for n in range(count):
        length = 5 if n % 3 else 4
        model = GraphicalModel([3] * length)
        model.add_unaries(rng.normal(size=3 * length))
        for i in range(length - 1):
            model.add_table((i, i + 1), rng.normal(size=(3, 3)))
        fgnn.write_model(model, folder / f"m{n}.uai")


def test_a_folder_is_labelled_grouped_and_split(tmp_path: Path) -> None:
    _write_models(tmp_path)
    groups = read_folder(tmp_path, CPU)
    assert sorted(len(g) for g in groups) == [4, 6]
    for group in groups:
        best = fgnn.solve(group.models.to(dtype=torch.float64), "exact")
        torch.testing.assert_close(group.models.score(group.labels), best.score, atol=1e-5, rtol=1e-5)
    train, held_out = split(groups, seed=0)
    assert sum(map(len, train)) + sum(map(len, held_out)) == 10
    assert sum(map(len, held_out)) >= 1


def test_a_wide_model_is_labelled_with_the_best_found_in_time(tmp_path: Path) -> None:
    model = glass(30, 0)
    fgnn.write_model(model, tmp_path / "glass.fgm")
    (examples,) = read_folder(tmp_path, CPU, seconds=1.0)
    start = model.unaries.reshape(-1, 2).argmax(1)
    assert float(examples.models.score(examples.labels)[0]) > model.score(start)
    assert folder_recipe(tmp_path).data.label_seconds is not None  # so that training on wide models begins at all


def test_training_on_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)
    (tmp_path / "models").mkdir()
    _write_models(tmp_path / "models")
    assert folder_recipe(tmp_path / "models").data.folder == str(tmp_path / "models")
    state, folder = run(tmp_path / "models", tmp_path / "run", device="cpu", epochs=8)
    assert state.metrics is not None
    assert folder.lines()[-1]["loss"] < folder.lines()[0]["loss"]
    solved = fgnn.solve(fgnn.read_model(tmp_path / "models" / "m0.uai"), "fgnn", weights=str(folder.path))
    assert solved.feasible
    guided = fgnn.solve(
        fgnn.read_model(tmp_path / "models" / "m0.uai"), "fgnn", weights=str(folder.path), search=True, time_limit=2.0
    )
    assert guided.score >= solved.score


def test_an_empty_folder_and_mixed_families_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Expected model files in this folder \(got none\)"):
        read_folder(tmp_path, CPU)
    families = [fgnn.models.map.family.Family(2), fgnn.models.map.family.Family(3)]
    with pytest.raises(ValueError, match=r"Expected models of one family \(got variables of \[2, 3\] states\)"):
        union(families)


def test_examples_select_models_and_labels_together() -> None:
    examples = draw(SETS[:1], 6, 0, CPU)
    some = examples.select(torch.tensor([4, 1]))
    assert isinstance(some, Examples)
    assert torch.equal(some.labels, examples.labels[[4, 1]])
    assert torch.equal(some.models.unary, examples.models.unary[[4, 1]])
