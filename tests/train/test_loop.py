"""The training loop: files of a run, resuming, time budgets, and learning."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fgnn.errors import InputError
from fgnn.models.map.config import NetworkConfig
from fgnn.tasks.data_settings import ChainData, Data
from fgnn.tasks.map import MAPTask
from fgnn.tasks.recipe import Schedule
from fgnn.tasks.settings import Optimiser, TrainingSettings
from fgnn.tasks.task import Loss
from fgnn.train.checkpoint import load_checkpoint
from fgnn.train.loop import planned_steps, train
from fgnn.train.run import recipe_of, run
from fgnn.train.run_folder import RunFolder
from fgnn.weights import load_weights
from tests.tasks.helpers import small_recipe
from tests.tensors import same_tensors


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw curves only in the test that looks for them."""
    if request.node.name != "test_a_run_writes_all_its_files":
        monkeypatch.setattr(RunFolder, "draw", lambda self: None)


def _numbers(folder: RunFolder) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if k not in ("seconds", "per_second")} for line in folder.lines()]


def test_a_run_writes_all_its_files(tmp_path: Path) -> None:
    state, folder = run(small_recipe(), tmp_path / "run", device="cpu")
    names = {p.name for p in folder.path.iterdir()}
    wanted = {"config.yaml", "environment.json", "metrics.jsonl", "curves.png", "checkpoint.safetensors"}
    wanted |= {"report.html"}
    assert wanted | {"best.safetensors", "best.json", "last.safetensors", "last.json"} == names
    assert recipe_of(folder) == small_recipe()
    assert [line["step"] for line in folder.lines()] == list(range(5, 45, 5))
    assert {"torch", "device", "command"} <= json.loads((folder.path / "environment.json").read_text()).keys()
    card = load_weights(folder.path).card
    assert card["instances_seen"] == state.step * 16 == 640
    assert card["metrics"]["agreement"] == pytest.approx(state.best)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "data": Data(chain=ChainData((1, 3), 8, 4, 2), instances=100),
            "batch": 24,
            "schedule": Schedule("exponential"),
        },
        {"network": NetworkConfig("pointnet"), "ema": None},  # dropout draws from torch's own generator
        {"network": NetworkConfig("FGNN(8) - Res[FC(8) - FGNN(8) - FC(8)] - FGNN(N)", q="table", norm="batch")},
    ],
    ids=["deep", "fixed-set", "dropout", "notation"],
)
def test_a_resumed_run_reaches_the_same_numbers(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = small_recipe(**changes)
    _, whole = run(recipe, tmp_path / "whole", device="cpu")
    stopped = run(recipe, tmp_path / "cut", device="cpu", time_budget=1e-9)[0]
    assert stopped.step == 5
    stopped = run(tmp_path / "cut", device="cpu", resume=True, on_log=_interrupt(20))[0]
    assert stopped.step == 25
    _, cut = run(tmp_path / "cut", device="cpu", resume=True)
    assert same_tensors(
        load_weights(whole.path / "last.safetensors").tensors, load_weights(cut.path / "last.safetensors").tensors
    )
    one, two = load_checkpoint(whole.checkpoint), load_checkpoint(cut.checkpoint)
    assert same_tensors(one.tensors, two.tensors)
    assert _numbers(whole) == _numbers(cut)


def test_metrics_after_the_checkpoint_are_rewritten(tmp_path: Path) -> None:
    _, folder = run(small_recipe(), tmp_path / "run", device="cpu")
    before = _numbers(folder)
    folder.metrics.write_text(folder.metrics.read_text() + '{"step": 45, "loss": 1.0}\n{"step": 5', encoding="utf-8")
    run(folder.path, device="cpu", resume=True)
    assert _numbers(folder) == before


def test_a_run_does_not_overwrite_another(tmp_path: Path) -> None:
    run(small_recipe(steps=5), tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match="already holds a run; use --resume"):
        run(small_recipe(steps=5), tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match=r"this folder holds a run; .*--resume"):
        run(tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match="no run to resume"):
        run(small_recipe(), tmp_path / "other", device="cpu", resume=True)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    _, one = run(small_recipe(steps=5), tmp_path / "one", device="cpu")
    wider = small_recipe(steps=5, network=NetworkConfig("deep", width=12, blocks=2, bases=2))
    _, two = run(wider, tmp_path / "two", device="cpu")
    two.checkpoint.write_bytes(one.checkpoint.read_bytes())
    with pytest.raises(InputError, match=r"two: the settings changed .*: network.width was 8 \(got 12\)"):
        run(two.path, device="cpu", resume=True)
    with pytest.raises(
        InputError, match=r"checkpoint.safetensors: Expected a checkpoint of this run \(got one of another"
    ):
        run(two.path, device="cpu", resume=True, allow_changes=True)


def _interrupt(step: int) -> Callable[[dict[str, Any]], None]:
    """Return a callback that sends the run a SIGTERM at a step."""

    def interrupt(line: dict[str, Any]) -> None:
        if line["step"] == step:
            signal.raise_signal(signal.SIGTERM)

    return interrupt


def test_a_signal_stops_with_a_checkpoint(tmp_path: Path) -> None:
    state, folder = run(small_recipe(), tmp_path / "run", device="cpu", on_log=_interrupt(15))
    assert (state.step, state.signal) == (20, signal.SIGTERM)  # the command exits with 128 more than the signal
    assert load_checkpoint(folder.checkpoint).values["state"]["step"] == 20


def test_seconds_become_steps_once(tmp_path: Path) -> None:
    state, folder = run(small_recipe(steps=None, seconds=1.5, validate_every=0), tmp_path / "run", device="cpu")
    assert state.total == state.step >= 15  # three windows of five are measured, however slow the machine
    assert load_checkpoint(folder.checkpoint).values["state"]["total"] == state.total


def test_a_non_finite_loss_ends_in_one_line(tmp_path: Path) -> None:
    recipe = small_recipe()
    wild = replace(recipe, optimiser=replace(recipe.optimiser, rate=1e30, clip=None))
    with pytest.raises(InputError, match=r"the loss is nan at step \d+; lower optimiser.rate"):
        run(wild, tmp_path / "run", device="cpu")


def test_a_run_starts_from_other_weights(tmp_path: Path) -> None:
    _, first = run(small_recipe(), tmp_path / "first", device="cpu")
    recipe = small_recipe(steps=5, start_from=str(first.path), ema=None)
    _, second = run(recipe, tmp_path / "second", device="cpu")
    assert second.lines()[0]["loss"] < first.lines()[0]["loss"]
    began = load_weights(second.path).card["began_with"]
    assert began["name"] == "small"
    assert began["instances_seen"] == 40 * 16
    other = replace(recipe, network=NetworkConfig("deep", width=12, blocks=2, bases=2))
    with pytest.raises(InputError, match="Expected weights of the recipe's network"):
        run(other, tmp_path / "third", device="cpu")


def test_epochs_count_whole_batches() -> None:
    recipe = small_recipe(steps=None, epochs=3, data=Data(chain=ChainData((1,), 8, 4, 2), instances=100))
    task = MAPTask(recipe)
    assert planned_steps(recipe, task) == 3 * (100 // 16)


def test_it_learns(tmp_path: Path) -> None:
    """After 150 steps a network is far better than any constant answer."""
    recipe = small_recipe(
        steps=150, batch=32, network=NetworkConfig("deep", width=16, blocks=2, bases=3), validation=512
    )
    state, _ = run(recipe, tmp_path / "run", device="cpu")
    task = MAPTask(recipe)
    labels = task.batch(0).labels
    constant = max((labels == s).float().mean().item() for s in (0, 1))
    assert state.metrics is not None
    assert state.metrics["agreement"] > constant + 0.15
    assert torch.isfinite(torch.tensor(state.metrics["loss"]))


class Doubling:
    """The smallest task: learn y = 2 x."""

    epoch_steps = None
    metric = chosen_by = "within a tenth"

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network: nn.Module = nn.Linear(1, 1)

    def batch(self, step: int) -> torch.Tensor:
        return torch.rand(16, 1, generator=torch.Generator().manual_seed(step))

    def loss(self, network: nn.Module, batch: torch.Tensor) -> Loss:
        error = network(batch) - 2 * batch
        return Loss(error.square().mean(), (error.detach().abs() < 0.1).float().mean())

    def validate(self, network: nn.Module) -> dict[str, float]:
        loss, close = self.loss(network, self.batch(1 << 40))
        return {"loss": loss.item(), self.metric: close.item()}

    def card(self) -> dict[str, Any]:
        return {"task": "doubling"}


def test_any_task_is_trained_by_its_settings_alone(tmp_path: Path) -> None:
    settings = TrainingSettings(
        optimiser=Optimiser(rate=0.1), schedule=Schedule("constant"), steps=100, checkpoint_every=50
    )
    folder = RunFolder(tmp_path / "run")
    folder.begin(settings)
    state = train(settings, Doubling(), folder)
    assert state.metrics is not None
    assert state.metrics["within a tenth"] == state.best == 1.0
    assert folder.lines()[-1]["within a tenth"] > 0.9
    assert load_weights(folder.path).card["task"] == "doubling"
    with pytest.raises(ValueError, match="without epochs"):
        planned_steps(TrainingSettings(epochs=1), Doubling())
