"""Training over Data, collate and DistributedDataParallel equals training in one process on the same samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.multiprocessing import spawn
from torch.utils.data import DataLoader

import fgnn
from tests.nn.own_loop import Energy, one_process, samples, train


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_two_processes_train_as_one_does(tmp_path: Path, compiled: bool) -> None:
    spawn(one_process, (str(tmp_path), compiled), nprocs=2)  # type: ignore[no-untyped-call]
    found = torch.load(tmp_path / "net.pt", weights_only=True)
    torch.manual_seed(0)
    net = Energy()
    # Two processes take samples 0, 2 and 1, 3 in their first step, and average their gradients.
    train(net, DataLoader(samples(), batch_size=4, collate_fn=fgnn.collate), 2)  # type: ignore[arg-type]
    for name, wanted in net.state_dict().items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-5)
