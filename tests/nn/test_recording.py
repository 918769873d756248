"""A recording replays, and a failed one leaves the device usable."""

from __future__ import annotations

import pytest
import torch

from fgnn.nn.cuda_graph import recording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_recording_replays() -> None:
    x = torch.ones(4, device="cuda")
    with recording() as graph:
        doubled = x * 2
    x.fill_(3)
    graph.replay()
    assert doubled.tolist() == [6, 6, 6, 6]


def test_random_numbers_continue_after_a_failed_recording() -> None:
    torch.cuda.manual_seed(7)
    expected = torch.rand(8, device="cuda")
    torch.cuda.manual_seed(7)
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError), recording():
        x.sum().item()  # host synchronisation cannot be recorded
    torch.testing.assert_close(torch.rand(8, device="cuda"), expected, rtol=0, atol=0)
    with recording() as graph:
        noise = torch.rand(8, device="cuda")
    graph.replay()
    first = noise.clone()
    graph.replay()
    assert not torch.equal(first, noise)
