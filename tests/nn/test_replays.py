"""A module that replays its launches gives what it gives without, in every kind of loop."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fgnn.nn import record, replays, use_backend
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.recorder import Recorder

GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


class Layers(nn.Module):
    """Two results, of operations that can be repeated; ``scale`` is a number that a recording keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(2, 2)
        self.scale, self.calls = 1.0, 0

    @replays.replays
    def forward(self, x: Tensor, more: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor], int]:
        object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
        hidden = self.first(x).relu()
        y = self.second(hidden) + x
        for entry in (more or {}).values():
            y = y + entry
        y = torch.add(y, hidden[:, :8], alpha=self.scale)
        return y, {"hidden": hidden, "sum": hidden.detach().sum(0)}, 7


def calls(net: nn.Module) -> int:
    """How often the module's own code ran."""
    return int(net.__dict__.get("_calls", 0))


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replays, "_known", lambda module: True)
    with use_backend("triton"):  # on a CPU only then
        yield


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def net(device: str) -> Layers:
    torch.manual_seed(0)
    return Layers().to(device)


def plain(net: nn.Module) -> Any:
    """A copy that runs as it is written."""
    return record(copy.deepcopy(net), False)


def points(device: str, seed: int, rows: int = 4) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)).to(device)


def gradients(module: nn.Module) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    return found


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.fixture
def often(net: Layers, device: str) -> Layers:
    """The module after enough calls to be replayed."""
    for seed in range(3):
        y, more, _ = net(points(device, seed))
        (y.sum() + more["hidden"].sum()).backward()
    net.zero_grad()
    return net


def test_training_is_the_same(net: Layers, device: str) -> None:
    other = plain(net)
    optimisers = [torch.optim.Adam(module.parameters(), lr=0.1) for module in (net, other)]
    for seed in range(8):
        found = []
        for module, optimiser in zip((net, other), optimisers, strict=True):
            optimiser.zero_grad()
            x = points(device, seed).requires_grad_()
            y, more, seven = module(x, {"entry": x.detach() + 1})
            assert seven == 7
            (y.square().sum() + more["hidden"].sum()).backward()
            optimiser.step()
            found.append([y.detach(), more["sum"], x.grad, *(p.grad for p in module.parameters())])
            assert not more["sum"].requires_grad
        same(*found)
    assert calls(other) == 8
    assert calls(net) == 3, net.__dict__["launches"].reason  # the third call is recorded


def test_several_forward_passes_may_precede_their_backward_passes(often: Layers, device: str) -> None:
    found = []
    for module in (often, plain(often)):
        results = [module(points(device, seed))[0].square().sum() * seed for seed in range(1, 4)]
        for result in results[1:]:
            result.backward()
        found.append([results[0].detach(), *gradients(module)])
    same(*found)
    assert isinstance(often.__dict__["launches"], Recorder)


def test_a_graph_that_is_retained_is_differentiated_again(often: Layers, device: str) -> None:
    other = plain(often)
    for module in (often, other):
        loss = module(points(device, 5))[0].square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    same(gradients(often), gradients(other))


def test_which_results_are_used_may_change(often: Layers, device: str) -> None:
    other = plain(often)
    for seed, used in enumerate(["y", "hidden", "both", "both", "hidden", "y", "y"]):
        found = []
        for module in (often, other):
            y, more, _ = module(points(device, seed))
            loss = sum(x.square().sum() for name, x in (("y", y), ("hidden", more["hidden"])) if used in (name, "both"))
            loss.backward()
            found.append(gradients(module))
        same(*found)


def test_results_belong_to_the_caller(often: Layers, device: str) -> None:
    one = often(points(device, 1))[0]
    before = one.detach().clone()
    often(points(device, 2))[0].sum().backward()
    assert torch.equal(one, before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(net: Layers, device: str, mode: Any) -> None:
    other = plain(net)
    for seed in range(6):
        with mode():
            same(net(points(device, seed))[:1], other(points(device, seed))[:1])
    assert calls(net) == 3


@pytest.mark.parametrize("change", ["shape", "strides", "address"])
def test_inputs_may_be_laid_out_otherwise(often: Layers, device: str, change: str) -> None:
    x = points(device, 9, rows=5)
    if change == "strides":
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).to(device).T
    elif change == "address":
        x = torch.randn(33, generator=torch.Generator().manual_seed(0)).to(device)[1:].view(4, 8)
    same(often(x)[:1], plain(often)(x)[:1])


@pytest.mark.parametrize("change", ["number", "data", "module", "frozen", "hook", "mode"])
def test_a_change_of_the_module_is_noticed(often: Layers, device: str, change: str) -> None:
    seen: list[int] = []
    if change == "number":
        often.scale = 3.0
    elif change == "data":
        often.first.weight.data = often.first.weight.data * 2
    elif change == "module":
        often.second = nn.Linear(16, 8).to(device)
    elif change == "frozen":
        often.first.requires_grad_(False)
    elif change == "hook":
        often.first.register_forward_hook(lambda *_: seen.append(1))
    else:
        often.eval()
    other = plain(often)
    for seed in range(4):
        found = []
        for module in (often, other):
            y = module(points(device, seed))[0]
            y.sum().backward()
            found.append([y.detach(), *gradients(module)])
        same(*found)
    assert len(seen) == 8 * (change == "hook")


def test_parameters_that_change_before_backward_are_refused(often: Layers, device: str) -> None:
    loss = often(points(device, 0))[0].sum()
    with torch.no_grad():
        often.first.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="parameters that are the same"):
        loss.backward()


def test_copies_replicas_and_stored_modules_have_recordings_of_their_own(often: Layers, device: str) -> None:
    for other in (copy.deepcopy(often), pickle.loads(pickle.dumps(often)), copy.copy(often)):
        if other.__dict__["launches"] is often.__dict__["launches"]:  # as replicas of DataParallel do
            other._parameters, other._modules = dict(other._parameters), copy.deepcopy(other._modules)
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        x = points(device, 1)
        for _ in range(4):
            assert torch.equal(other(x)[0], x)
    assert not torch.equal(often(x)[0], x)


def test_a_checkpoint_sees_the_module(often: Layers, device: str) -> None:
    before = calls(often)
    checkpoint(often, points(device, 0), use_reentrant=False)[0].sum().backward()
    assert calls(often) == before + 2


def test_a_module_that_reads_a_value_runs_as_it_is_written(device: str) -> None:
    class Reads(nn.Module):
        @replays.replays
        def forward(self, x: Tensor) -> Tensor:
            return x * float(x.sum())

    net = Reads()
    for k in range(6):
        assert net(torch.full((2,), float(k), device=device)).tolist() == [2.0 * k * k] * 2
    assert net.__dict__["launches"].reason is not None


def test_dropout_draws_anew_at_its_rate(device: str) -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        @replays.replays
        def forward(self, x: Tensor) -> Tensor:
            object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
            return self.dropout(x)

    net, x = Drops(), torch.ones(1000, device=device, requires_grad=True)
    results = []
    for _ in range(6):
        y = net(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad, y)  # both are 2 where an entry is kept
        results.append(y.detach())
    assert calls(net) == 3
    assert not torch.equal(results[-1], results[-2])
    net.dropout.p = 0.1
    assert 0.85 < float((net(x) > 0).float().mean()) < 0.95


def test_running_statistics_are_updated_once_for_each_call(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(8))

        @replays.replays
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
            y = self.linear(x)
            self.seen.add_(y.detach().sum(0))
            return y, y.relu()

    torch.manual_seed(0)
    net = Counts().to(device)
    other = plain(net)
    for seed in range(24):  # the result that is used changes every time: after some changes, none matters
        for module in (net, other):
            y, z = module(points(device, seed))
            (y if seed % 2 else z).sum().backward()
        same([net.seen, *gradients(net)], [other.seen, *gradients(other)])
    assert calls(net) < calls(other)


def test_a_result_that_is_unused_has_no_part_in_random_gradients(device: str) -> None:
    class Drops(nn.Module):
        @replays.replays
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return nn.functional.dropout(x, 0.5), x.relu()

    net, x = Drops(), torch.ones(1000, device=device, requires_grad=True)
    for k in range(8):
        y, z = net(x)
        (grad,) = torch.autograd.grad(y.sum() if k % 2 else (y + z).sum(), x)
        assert torch.equal(grad, y if k % 2 else y + 1)


def test_an_operation_that_writes_and_returns_something_else_is_not_repeated(device: str) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        @replays.replays
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            return y

    net = Norm().to(device)
    other = plain(net)
    for seed in range(6):
        same([net(points(device, seed))], [other(points(device, seed))])
        same(list(net.buffers()), list(other.buffers()))


def test_a_custom_module_inside_is_not_replayed(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.undo()
    net = Layers().to(device)
    with use_backend("triton"):
        for seed in range(5):
            net(points(device, seed))
    assert calls(net) == 5


def test_memory_is_freed_with_the_results(often: Layers, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Any] = []
    real = Program.__call__

    def noted(self: Program, operands: Any) -> Any:
        found = real(self, operands)
        alive.extend(
            torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()) for x in found or () if x is not None
        )
        return found

    monkeypatch.setattr(Program, "__call__", noted)
    loss = often(points(device, 0))[0].sum()
    assert not all(x.expired() for x in alive)
    del loss
    assert all(x.expired() for x in alive)
