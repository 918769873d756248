"""Killed at any moment and resumed, a run ends in bitwise equal weights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fgnn.tasks.recipe import recipe_yaml
from fgnn.train.run import run
from fgnn.weights import load_weights
from tests.tasks.helpers import small_recipe
from tests.tensors import same_tensors

RECIPE = small_recipe(steps=60, checkpoint_every=5)


def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
    code = "import sys; from fgnn.cli import main; sys.argv[0] = 'fgnn'; main()"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, "train", *arguments, "--device", "cpu"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _killed(arguments: list[str], folder: Path, rng: random.Random) -> None:
    """Start a run and kill it at a random moment after its first log, possibly inside a write."""
    before = _size(folder)
    process = _start(arguments)
    deadline = time.monotonic() + 120
    while _size(folder) <= before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(rng.random() * 0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()


def _size(folder: Path) -> int:
    """Return how much the run has logged; a rewound log counts from its new end."""
    path = folder / "metrics.jsonl"
    return path.stat().st_size if path.is_file() else 0


def _check(tmp_path: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe_yaml(RECIPE), encoding="utf-8")
    folder = tmp_path / "run"
    _killed([str(recipe), "--out", str(folder)], folder, rng)
    for _ in range(kills - 1):
        _killed([str(folder), "--resume"], folder, rng)
    state, _ = run(folder, device="cpu", resume=True)
    assert state.step == 60
    _, whole = run(RECIPE, tmp_path / "whole", device="cpu")
    for name in ("last", "best"):
        one, two = (load_weights(f / f"{name}.safetensors") for f in (folder, whole.path))
        assert same_tensors(one.tensors, two.tensors)
    assert not [p.name for p in folder.iterdir() if p.name.endswith(".part")]


def test_killed_twice(tmp_path: Path) -> None:
    _check(tmp_path, kills=2, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_twenty_times(tmp_path: Path) -> None:
    _check(tmp_path, kills=20, seed=1)
