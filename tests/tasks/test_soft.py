"""Soft targets: their values, their gaps, and a run that uses them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fgnn.data import ChainMAP
from fgnn.errors import InputError
from fgnn.infer.exact.max_marginals import gaps
from fgnn.runtime.distributed import World
from fgnn.tasks.data_settings import Data, GridData
from fgnn.tasks.labelled_models import Endless
from fgnn.tasks.map import MAPTask, map_loss, soft_targets
from fgnn.tasks.recipe import Recipe, Schedule, Soft, read_recipe
from fgnn.tasks.tensor_tree import clone_tensors, copy_tensors, signature, tensors_of
from fgnn.train.run import recipe_of, run
from fgnn.train.run_folder import RunFolder
from tests.tasks.helpers import small_recipe

CPU = torch.device("cpu")
SETS = [ChainMAP(k, 8, 4, 2) for k in (1, 2, 3)]


def test_targets_by_hand() -> None:
    labels = torch.tensor([[1, 0, 1, 0]])
    apart = torch.tensor([[0.1, -0.1, 0.0, -torch.inf]])
    targets = soft_targets(labels, apart, Soft(weight=0.5, temperature=0.1))
    sigmoid = 1 / (1 + torch.e**-1)
    expected = torch.tensor([0.5 + 0.5 * sigmoid, 0.5 * (1 - sigmoid), 0.75, 0.0])
    torch.testing.assert_close(targets[0, :, 1], expected)
    torch.testing.assert_close(targets.sum(-1), torch.ones(1, 4))


def test_the_loss_is_least_if_the_scores_equal_the_gap() -> None:
    apart = torch.tensor([[0.03, -0.2, 0.4]])
    labels, soft = (apart > 0).long(), Soft(temperature=0.1)
    logits = (apart / 0.1).requires_grad_()
    loss = map_loss(torch.stack([-logits / 2, logits / 2], -1), labels, gaps=apart, soft=soft)
    (slope,) = torch.autograd.grad(loss.loss, logits)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-6, rtol=0)
    assert loss.correct == 1


def test_inner_readouts_have_the_same_targets() -> None:
    apart = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    labels, soft = (apart > 0).long(), Soft(0.7, 0.2)
    first, last = torch.randn(2, 2, 5, 2, generator=torch.Generator().manual_seed(1))
    both = map_loss(torch.stack([first, last]), labels, 0.5, gaps=apart, soft=soft)
    alone = [map_loss(s, labels, gaps=apart, soft=soft).loss for s in (first, last)]
    torch.testing.assert_close(both.loss, alone[1] + 0.5 * alone[0])
    with pytest.raises(ValueError, match="Expected gaps for soft targets"):
        map_loss(last, labels, soft=soft)


def test_examples_carry_their_gaps_into_every_batch() -> None:
    batch = Endless(SETS, 12, 5, World(), CPU, with_gaps=True).batch(3)
    assert batch.gaps is not None
    torch.testing.assert_close(batch.gaps, gaps(batch.models))
    assert torch.equal((batch.gaps > 0).long(), batch.labels)
    part = batch.select(torch.tensor([7, 2]))
    assert part.gaps is not None
    assert torch.equal(part.gaps, batch.gaps[[7, 2]])
    assert Endless(SETS, 12, 5, World(), CPU).batch(3).gaps is None


def test_a_fixed_set_has_gaps_too() -> None:
    data = replace(small_recipe().data, instances=40)
    task = MAPTask(small_recipe(data=data, soft=Soft()))
    batch = task.batch(1)
    assert batch.gaps is not None
    torch.testing.assert_close(batch.gaps, gaps(batch.models))


def test_a_captured_step_gets_the_gaps_of_each_batch() -> None:
    """A captured step reads fixed memory, so every tensor of a batch must be copied into it."""
    source = Endless(SETS, 12, 5, World(), CPU, with_gaps=True)
    first, second = source.batch(0), source.batch(1)
    held = clone_tensors(first)
    assert first.gaps is not None
    assert second.gaps is not None
    assert signature(held) == signature(second)
    assert any(t is first.gaps for t in tensors_of(first))
    copy_tensors(held, second)
    assert torch.equal(held.gaps, second.gaps)
    assert not torch.equal(held.gaps, first.gaps)


def test_the_loss_is_one_graph_without_host_synchronisation() -> None:
    task = MAPTask(small_recipe(soft=Soft(0.5, 0.1)))
    batch = task.batch(0)
    scores = task.network(batch.models).detach()
    assert batch.gaps is not None
    traced = torch.compile(map_loss, fullgraph=True, backend="eager")
    result = traced(scores, batch.labels, gaps=batch.gaps, soft=task.recipe.soft)
    torch.testing.assert_close(result.loss, task.loss(task.network, batch).loss.detach())
    torch.compiler.reset()
    assert map_loss(scores.to("meta"), batch.labels.to("meta"), gaps=batch.gaps.to("meta"), soft=Soft()).loss.is_meta


def test_a_run_with_soft_targets_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)
    _, folder = run(small_recipe(soft=Soft(temperature=0.2), steps=60), tmp_path / "run", device="cpu")
    lines = folder.lines()
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["validation_agreement"] > 0.75
    assert recipe_of(folder).soft == Soft(temperature=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soft: {weight: 1.5}", r"soft.weight: Expected more than 0 and at most 1 \(got 1.5\)"),
        ("soft: {temperature: 0}", r"soft.temperature: Expected at least 1e-06 .* \(got 0.0\)"),
        ("soft: {temp: 1}", r"soft.temp: unknown key; did you mean 'temperature'\?"),
        ("soft: 0.5", r"soft: Expected a mapping of settings \(got 0.5\)"),
    ],
)
def test_mistakes_are_reported_with_their_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {{chain: {{}}, instances: 100}}\nepochs: 1\nbatch: 10\n{text}\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_recipe(path)


def test_gaps_are_for_chains_only() -> None:
    with pytest.raises(ValueError, match=r"Expected data\.chain for soft targets"):
        Recipe(data=Data(grid=GridData()), schedule=Schedule("constant"), steps=1, soft=Soft())
