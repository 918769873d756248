"""Run folders that were altered are resumed or refused in one line: no traceback, no gigabytes, no endless training."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fgnn.models import NetworkConfig
from fgnn.train.checkpoint import load_checkpoint
from fgnn.train.run import run
from fgnn.train.run_folder import RunFolder
from fgnn.weights.store import save_tensors
from tests.fuzz.altered import alterations, attempt
from tests.tasks.helpers import small_recipe


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder of a small run, ten steps of twenty."""
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)
    small = small_recipe(
        steps=20, network=NetworkConfig("deep", width=4, blocks=1, bases=1), validation=8, validate_every=0, ema=None
    )
    return run(small, tmp_path / "begun", device="cpu", time_budget=1e-9)[1]


def cases(folder: RunFolder) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """What was altered, and how to alter a copy of the folder."""
    settings = yaml.safe_load(folder.config.read_text())
    for what, values in alterations(settings):
        yield f"config.yaml: {what}", partial(_write, "config.yaml", yaml.safe_dump(values).encode())
        without = partial(_write_without_checkpoint, yaml.safe_dump(values).encode())
        yield f"config.yaml, no checkpoint: {what}", without
    checkpoint = load_checkpoint(folder.checkpoint)
    for what, values in alterations(json.loads(json.dumps(dict(checkpoint.values)))):
        yield f"checkpoint: {what}", partial(_write_checkpoint, checkpoint.tensors, values)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for what, values in alterations(lines):
        text = "".join(json.dumps(line) + "\n" for line in values) if isinstance(values, list) else json.dumps(values)
        yield f"metrics.jsonl: {what}", partial(_write, "metrics.jsonl", text.encode())
    for what, values in alterations(json.loads(folder.environment.read_text())):
        yield f"environment.json: {what}", partial(_write, "environment.json", json.dumps(values).encode())
    for name in ("config.yaml", "environment.json", "data.json", "metrics.jsonl", "checkpoint.safetensors"):
        for data in (b"", b"\xff\xfe", b"[" * 100_000, b"null", b"{}", b"\0" * 64):
            yield f"{name} = {data[:8]!r}", partial(_write, name, data)


def _write(name: str, data: bytes, folder: Path) -> None:
    (folder / name).write_bytes(data)


def _write_without_checkpoint(data: bytes, folder: Path) -> None:
    (folder / "config.yaml").write_bytes(data)
    (folder / "checkpoint.safetensors").unlink()


def _write_checkpoint(tensors: Any, values: Any, folder: Path) -> None:
    save_tensors(folder / "checkpoint.safetensors", tensors, values, "fgnn-checkpoint-1")


def check(begun: RunFolder, count: int | None) -> tuple[int, int]:
    """Resume altered copies of a run; return how many trained, of how many."""
    listed = list(cases(begun))
    chosen = listed if count is None else random.Random(0).sample(listed, count)
    used, copy = 0, begun.path.with_name("copy")
    for what, alter in chosen:
        shutil.copytree(begun.path, copy)
        alter(copy)
        resume = partial(run, copy, device="cpu", resume=True, time_budget=1e-9)
        used += attempt(what, resume, str(copy))
        shutil.rmtree(copy)
    return used, len(chosen)


def test_an_altered_run_folder_is_resumed_or_refused_in_one_line(finished: RunFolder) -> None:
    used, count = check(finished, 60)
    assert 5 < used < count


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_alteration_of_a_run_folder(finished: RunFolder) -> None:
    assert check(finished, None)[1] > 1000
