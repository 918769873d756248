"""Training with several processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fgnn.models.map.config import NetworkConfig
from fgnn.runtime.distributed import World
from fgnn.tasks.data_settings import ChainData, Data
from fgnn.tasks.recipe import recipe_yaml
from fgnn.train.run import run
from fgnn.weights import load_weights
from tests.tasks.helpers import small_recipe


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_two_gloo_processes_match_one_process(tmp_path: Path) -> None:
    recipe = small_recipe(steps=30, data=Data(chain=ChainData((1, 3), 8, 4, 2)), ema=None)
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe_yaml(recipe), encoding="utf-8")
    code = "import sys; from fgnn.cli import main; sys.argv[0] = 'fgnn'; main()"
    command = [sys.executable, "-c", code, "train", str(file), "--out", str(tmp_path / "two"), "--device", "cpu"]
    port = str(_free_port())
    both = [
        subprocess.Popen(
            command,
            env=os.environ
            | {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for r in range(2)
    ]
    _, alone = run(recipe, tmp_path / "one", device="cpu")
    output = [process.communicate(timeout=240)[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], output
    text = (tmp_path / "two" / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == [line["step"] for line in alone.lines()]
    for ours, theirs in zip(lines, alone.lines(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    one, two = (load_weights(tmp_path / n / "last.safetensors").tensors for n in ("one", "two"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], atol=1e-4, rtol=1e-3)


def test_shares_are_equal_and_cover_the_batch() -> None:
    shares = [World(rank, 4).share(12) for rank in range(4)]
    assert [list(range(12))[s] for s in shares] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    with pytest.raises(ValueError, match="Expected a batch divisible by the 5 processes"):
        World(0, 5).share(12)


def test_batch_norm_over_cpu_processes_is_refused() -> None:
    network = NetworkConfig("pointnet")
    from fgnn.tasks.map import MAPTask

    task = MAPTask(small_recipe(network=network))
    with pytest.raises(ValueError, match="Expected a network without batch norm"):
        World(0, 2).wrap(task.network, torch.device("cpu"))
