"""One training per folder: locks, what a crash leaves, resuming with other settings or data, and failed starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fgnn import write_model
from fgnn.data import ChainMAP
from fgnn.errors import InputError, MissingExtra
from fgnn.models import NetworkConfig
from fgnn.tasks.model_folder import folder_recipe
from fgnn.tasks.recipe import Optimiser, recipe_yaml
from fgnn.train import run_lock
from fgnn.train.run import run
from fgnn.train.run_folder import RunFolder
from fgnn.train.run_lock import locked
from tests.tasks.helpers import small_recipe


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)


@pytest.fixture(params=["kernel", "existence"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "existence":
        monkeypatch.setattr(run_lock, "fcntl", None)  # a system without POSIX locks
    return str(request.param)


def test_two_trainings_in_one_folder_do_not_mix(tmp_path: Path, kind: str) -> None:
    def second(line: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=rf"run: process {os.getpid()} on .* is training in this folder"):
            run(small_recipe(seed=9), tmp_path / "run", device="cpu")
        with pytest.raises(InputError, match="is training in this folder"):
            run(tmp_path / "run", device="cpu", resume=True)

    state, folder = run(small_recipe(steps=10), tmp_path / "run", device="cpu", on_log=second)
    assert state.step == 10
    assert not (folder.path / "run.lock").exists()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = f"""
import os, pathlib
from fgnn.train.run_lock import locked
with locked(pathlib.Path({str(tmp_path / "run")!r})):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert (tmp_path / "run" / "run.lock").exists()  # the file stays, the lock does not
    with locked(tmp_path / "run"):
        pass
    assert not (tmp_path / "run" / "run.lock").exists()


@pytest.mark.parametrize(
    ("holder", "stale"),
    [
        (f"{2**22 + 7} on {socket.gethostname()}", True),
        (f"{os.getpid()} on {socket.gethostname()}", False),
        ("17 on another-machine", False),
        ("", False),
    ],
    ids=["dead", "alive", "elsewhere", "unknown"],  # the values differ from process to process
)
def test_without_locks_only_a_dead_process_of_this_machine_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str, stale: bool
) -> None:
    monkeypatch.setattr(run_lock, "fcntl", None)
    (tmp_path / "run.lock").write_text(holder)
    if stale:
        with locked(tmp_path):
            pass
    else:
        with pytest.raises(InputError, match="is training in this folder"), locked(tmp_path):
            pass
        assert (tmp_path / "run.lock").read_text() == holder


def test_a_folder_that_the_block_leaves_empty_is_removed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path / "a" / "b"):
        raise RuntimeError
    assert not (tmp_path / "a").exists()
    with locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    assert (tmp_path / "a" / "b" / "kept").exists()


# ---- resuming ---------------------------------------------------------------------------------------------------


def stopped(folder: Path, **changes: Any) -> RunFolder:
    return run(small_recipe(**changes), folder, device="cpu", time_budget=1e-9)[1]


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    faster = small_recipe(optimiser=Optimiser("adamw", 0.01, beta2=0.99, weight_decay=0.01, clip=1.0))
    with pytest.raises(
        InputError, match=r"settings changed .*: optimiser.rate was 0.003 \(got 0.01\); .*--allow-changes"
    ):
        run(faster, folder.path, device="cpu", resume=True)
    with pytest.raises(InputError, match=r"seed was 3 \(got 4\)"):
        run(folder.path, device="cpu", resume=True, seed=4)
    folder.config.write_text(recipe_yaml(faster))  # edited in the folder
    with pytest.raises(InputError, match=r"optimiser.rate was 0.003 \(got 0.01\)"):
        run(folder.path, device="cpu", resume=True)
    assert run(small_recipe(), folder.path, device="cpu", resume=True, time_budget=1e-9)[0].step == 10  # as it began


def test_changes_are_allowed_on_demand(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    state, _ = run(small_recipe(steps=20), folder.path, device="cpu", resume=True, allow_changes=True)
    assert state.step == state.total == 20
    assert run(folder.path, device="cpu", resume=True)[0].step == 20  # the folder now describes the run


def test_changed_data_are_refused_and_named(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    batch = ChainMAP(2, 5, 3, 2).sample(6)
    for n in range(6):
        write_model(batch.model(n), models / f"{n}.uai")
    recipe = folder_recipe(models).with_changes(steps=20, log_every=5, checkpoint_every=5)
    small = NetworkConfig("FGNN(4) - FGNN(N)")
    recipe = recipe.with_changes(network=small, batch=2)
    folder = run(recipe, tmp_path / "run", device="cpu", time_budget=1e-9)[1]
    write_model(batch.model(0), models / "5.uai")
    (models / "4.uai").unlink()
    with pytest.raises(InputError, match=r"data changed since the run began: 4.uai is missing, 5.uai changed; --allow"):
        run(folder.path, device="cpu", resume=True)
    assert run(folder.path, device="cpu", resume=True, allow_changes=True)[0].step == 20


# ---- starts that fail -------------------------------------------------------------------------------------------


def _missing(name: str) -> None:
    raise MissingExtra(f"{name} is needed here")


@pytest.mark.parametrize(
    ("changes", "options", "error"),
    [
        ({"optimiser": Optimiser(rate=1e30)}, {}, "the loss is"),
        ({}, {"tensorboard": True}, "is needed here"),
        ({"start_from": "no-such-weights"}, {}, "no such weights"),
        ({"network": NetworkConfig("deep", width=4096, blocks=64, bases=64)}, {}, "at most 100,000,000 numbers"),
        ({"batch": 1 << 18, "data": None}, {}, "memory"),
    ],
    ids=["loss", "tensorboard", "weights", "network", "memory"],
)
def test_a_failed_start_does_not_block_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], options: dict[str, Any], error: str
) -> None:
    from fgnn.tasks.data_settings import ChainData, Data

    if "data" in changes:
        changes = changes | {"data": Data(chain=ChainData((1,), 10**5, 4, 2))}
    need: Callable[[str], Any] = _missing if options else lambda name: None
    monkeypatch.setattr("fgnn.train.loop.need", need)
    with pytest.raises((InputError, MissingExtra), match=error):
        run(small_recipe(**changes), tmp_path / "runs" / "run", device="cpu", **options)
    assert not (tmp_path / "runs").exists()
    assert run(small_recipe(steps=5), tmp_path / "runs" / "run", device="cpu")[0].step == 5


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=r"run\.lock"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"
