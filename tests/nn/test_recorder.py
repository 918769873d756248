"""When calls are recorded: kinds in turn, failures, and memory that is short for a while."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
import torch
from torch import Tensor, nn

from fgnn.nn import recorder, replays, use_backend
from fgnn.nn.recorder import Recorder


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @replays.replays
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replays, "LAUNCHES", replays.LAUNCHES._replace(accepts=callable))
    with use_backend("triton"):
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of the inputs of every recording that was made."""
    rows: list[int] = []
    real = replays.LAUNCHES.record

    def note(
        module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], shared: dict[str, Tensor]
    ) -> object:
        rows.append(args[0].shape[0])
        return real(module, args, kwargs, shared)

    monkeypatch.setattr(replays, "LAUNCHES", replays.LAUNCHES._replace(record=note))
    return rows


def run(net: Net, kinds: int, times: int) -> None:
    for _ in range(times):
        for k in range(kinds):
            net(torch.randn(2 + k, 4)).sum().backward()


def test_many_kinds_of_calls_in_turn_are_recorded_once_each(made: list[int]) -> None:
    run(Net(), kinds=12, times=6)
    assert sorted(made) == list(range(2, 14))


def test_more_kinds_than_are_kept_are_not_recorded_over_and_over(
    made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "_KEEP", 3)
    monkeypatch.setattr(recorder, "_CREDIT", 40)
    net = Net()
    run(net, kinds=5, times=40)
    assert 3 < len(made) <= 3 + (40 + 40 * 5) // 20
    before = len(made)
    run(net, kinds=5, times=20)
    assert len(made) - before <= 20 * 5 // 20  # what replays have paid for


def test_a_kind_of_call_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tried = replays.LAUNCHES.record, []

    def fails(
        module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], shared: dict[str, Tensor]
    ) -> object:
        if args[0].shape[0] == 2:
            tried.append(0)
            raise TypeError("no such kernel")
        return real(module, args, kwargs, shared)

    monkeypatch.setattr(replays, "LAUNCHES", replays.LAUNCHES._replace(record=fails))
    net = Net()
    run(net, kinds=1, times=10)
    assert len(tried) == 3
    assert net.__dict__["launches"].reason == "no such kernel"
    run(net, kinds=3, times=5)
    assert len(net.__dict__["launches"]) == 2


def test_memory_that_is_short_for_a_while_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = replays.LAUNCHES.record, [0] * 5

    def short(
        module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], shared: dict[str, Tensor]
    ) -> object:
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(module, args, kwargs, shared)

    monkeypatch.setattr(replays, "LAUNCHES", replays.LAUNCHES._replace(record=short))
    net = Net()
    run(net, kinds=1, times=10)
    assert len(net.__dict__["launches"]) == 1


def test_a_recorder_of_few_recordings_gives_the_oldest_up(made: list[int]) -> None:
    net = Net()
    net.__dict__["launches"] = Recorder(replays.LAUNCHES, 2)
    run(net, kinds=3, times=3)
    assert len(net.__dict__["launches"]) == 2
    assert made == [2, 3, 4]


def test_threads_that_differentiate_gradients_leave_the_parameters() -> None:
    net = Net()
    run(net, kinds=1, times=3)
    weight = net.layer.weight

    def work() -> None:
        for _ in range(20):
            x = torch.randn(2, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
            slope.square().sum().backward()

    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert net.layer.weight is weight
