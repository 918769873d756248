"""A module that replays its launches gives what it gives without, in every kind of loop."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from threading import Event, Thread, current_thread
from types import MethodType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._pytree import register_pytree_node
from torch.utils.checkpoint import checkpoint

from fgnn.nn import record, replays, use_backend
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.norm import RMSNorm
from fgnn.nn.recorder import Recorder

GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


class Layers(nn.Module):
    """Two results, of operations that can be repeated; ``scale`` is a number that a recording keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(2, 2)
        self.square = nn.Parameter(torch.randn(8, 8))
        self.scale, self.calls = 1.0, 0

    @replays.replays
    def forward(self, x: Tensor, more: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor], int]:
        object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
        hidden = self.first(x).relu()
        y = self.second(hidden) + x
        for entry in (more or {}).values():
            y = y + entry
        y = torch.add(y, hidden[:, :8], alpha=self.scale) * (1 + self.square.sum(1))
        return y, {"hidden": hidden, "sum": hidden.detach().sum(0)}, 7


class Doubled(nn.Linear):
    """Another kind of module with the same attributes."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Activated(nn.Module):
    """A small network with an activation of torch's."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), activation, nn.GroupNorm(4, 16), nn.Linear(16, 3), nn.Softmax(-1))

    @replays.replays
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return y


def calls(net: nn.Module) -> int:
    """How often the module's own code ran."""
    return int(net.__dict__.get("_calls", 0))


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replays, "LAUNCHES", replays.LAUNCHES._replace(accepts=callable))  # any module
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
            found.append([None if x is None else x.nan_to_num() for x in gradients(module)])
        for one, plainly in zip(*found, strict=True):  # a parameter that was not reached may have a gradient of zero
            assert one is None or torch.allclose(one, torch.zeros_like(one) if plainly is None else plainly, atol=1e-5)
            assert plainly is None or one is not None
    assert calls(often) > 3  # once a result is unused, the module itself serves


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


def test_a_module_that_counts_its_calls_is_called(device: str) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        @replays.replays
        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return x * self.count

    net, x = Counts(), torch.ones(4, device=device)
    for k in range(1, 12):
        assert net(x).tolist() == [k] * 4
    assert net.count == 11


def test_modes_may_alternate(often: Layers, device: str) -> None:
    """Each has a recording of its own, none of which stands for a call in another mode."""
    other = plain(often)
    for k in range(20):
        x = points(device, k)
        for module in (often, other):
            module.train(k % 3 > 0)
        with torch.set_grad_enabled(k % 2 > 0), torch.autocast(device, torch.bfloat16, enabled=k % 5 > 2):
            one, same_one = often(x)[0], other(x)[0]
        assert one.requires_grad == same_one.requires_grad == (k % 2 > 0)
        assert one.dtype == same_one.dtype
        torch.testing.assert_close(one, same_one)


@pytest.mark.parametrize(
    "change",
    ["number", "data", "layout", "rows", "table", "module", "kind", "frozen", "hook", "hooks", "forward", "mode"],
)
def test_a_change_of_the_module_is_noticed(often: Layers, device: str, change: str) -> None:
    seen: list[int] = []
    if change == "number":
        often.scale = 3.0
    elif change == "data":
        often.first.weight.data = often.first.weight.data * 2
    elif change == "layout":
        often.square.data = often.square.data.t()
    elif change == "rows":
        often.square.data = often.square.data[:1]
    elif change == "table":
        doubled = {name: nn.Parameter(2 * p.detach()) for name, p in often.first._parameters.items() if p is not None}
        often.first.__dict__["_parameters"] = doubled
    elif change == "kind":
        often.first.__class__ = Doubled
    elif change == "hooks":
        often.first.__dict__["_forward_hooks"] = OrderedDict({0: lambda *_: seen.append(1)})
    elif change == "module":
        often.second = nn.Linear(16, 8).to(device)
    elif change == "frozen":
        often.first.requires_grad_(False)
    elif change == "hook":
        often.first.register_forward_hook(lambda *_: seen.append(1))
    elif change == "forward":
        often.second.forward = MethodType(lambda self, x: 2 * nn.Linear.forward(self, x), often.second)
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
    assert len(seen) == 8 * change.startswith("hook")


def test_a_pass_that_was_refused_is_not_begun_again(
    often: Layers, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Program] = []
    real = Program.__call__

    def noted(self: Program, *operands: Any) -> Any:
        begun.append(self)
        return real(self, *operands)

    often(points(device, 0))
    often.first.register_forward_hook(lambda *_: None)
    monkeypatch.setattr(Program, "__call__", noted)
    for seed in range(5):
        often(points(device, seed))
    (call,) = often.__dict__["launches"]._calls.values()
    assert begun.count(call._forward) == 1


@pytest.mark.parametrize("moved", [False, True])
def test_memory_that_is_gone_is_not_read(often: Layers, device: str, moved: bool) -> None:
    """What holds parameters may be freed and allocated again elsewhere, as sharded training does."""
    other = plain(often)
    storage = often.first.weight.untyped_storage()
    before, size = often.first.weight.detach().clone(), storage.nbytes()
    if moved:
        storage.resize_(0)
        kept = torch.empty(size, dtype=torch.uint8, device=device)  # takes its place
        storage.resize_(size)
        with torch.no_grad():
            often.first.weight.copy_(before)
        del kept
    for seed in range(4):
        x = points(device, seed)
        torch.testing.assert_close(often(x)[0], other(x)[0])


def test_changes_are_noticed_after_a_call_whose_results_were_not_all_used(net: Layers, device: str) -> None:
    for seed in range(5):
        net(points(device, seed))[0].sum().backward()
    net.first.weight = nn.Parameter(2 * net.first.weight.detach())
    for seed in range(4):
        y, more, _ = net(points(device, seed))
        (y.sum() + more["hidden"].sum()).backward()
    (call,) = net.__dict__["launches"]._calls.values()  # a new one
    assert any(p is net.first.weight for p in call._parameters)


def test_a_change_of_one_gradient_is_none_of_the_others(often: Layers, device: str) -> None:
    y, more, _ = often(points(device, 0))
    parameters = [*often.first.parameters(), *often.second.parameters()]
    first, *others = torch.autograd.grad(y.sum() + more["hidden"].sum(), parameters)
    weight = torch.ones_like(others[0], requires_grad=True)
    loss = (others[0] * weight).sum()
    first.mul_(2.0)
    first += 0.1 * parameters[0]  # also where gradients of gradients are kept
    loss.backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, others[0])


def test_parameters_that_change_before_backward_are_refused(often: Layers, device: str) -> None:
    loss = often(points(device, 0))[0].sum()
    with torch.no_grad():
        often.second.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="Expected parameters and results that are the same"):
        loss.backward()


def test_results_that_backward_reads_may_not_change_before_it(often: Layers, device: str) -> None:
    hidden = often(points(device, 0))[1]["hidden"]
    loss = hidden.sum()
    with torch.no_grad():
        hidden.sub_(0.3)
    with pytest.raises(RuntimeError, match="Expected parameters and results that are the same"):
        loss.backward()


def test_results_may_be_changed_in_place(often: Layers, device: str) -> None:
    found = []
    for module in (often, plain(often)):
        y, more, _ = module(points(device, 0))
        y[:, 0] = 0.0
        (y.sum() + more["hidden"].sum()).backward()
        found.append([y.detach(), *gradients(module)])
    same(*found)


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


class Counts(nn.Module):
    """Writes to a buffer at every call."""

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


def test_running_statistics_are_updated_once_for_each_call(device: str) -> None:
    torch.manual_seed(0)
    net = Counts().to(device)
    other = plain(net)
    for seed in range(7):
        for module in (net, other):
            y, z = module(points(device, seed))
            (y + z).sum().backward()
        same([net.seen, *gradients(net)], [other.seen, *gradients(other)])
    assert calls(net) < calls(other)


def test_running_statistics_may_be_updated_before_an_earlier_call_is_differentiated(device: str) -> None:
    torch.manual_seed(0)
    net = Counts().to(device)
    other = plain(net)
    for seed in range(6):
        for module in (net, other):
            one, two = (sum(module(points(device, seed + k))) for k in range(2))
            one.square().sum().backward()
            two.square().sum().backward()
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


class Norm(nn.Module):
    """Writes to its buffers in training, and reads them in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    @replays.replays
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


def test_an_operation_that_writes_and_returns_something_else_is_not_repeated(device: str) -> None:
    net = Norm().to(device)
    other = plain(net)
    for seed in range(6):
        same([net(points(device, seed))], [other(points(device, seed))])
        same(list(net.buffers()), list(other.buffers()))


class Simple(nn.Module):
    """A linear layer and what a test adds to it."""

    def __init__(self, after: Any, gamma: Any = None) -> None:
        super().__init__()
        self.linear, self.gamma, self._after = nn.Linear(8, 8), gamma, after

    @replays.replays
    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
        y: Tensor = self._after(self.linear(x), self.gamma)
        return y if other is None else y + other


def compare(net: nn.Module, device: str, calls_of_each: int = 6, **more: Any) -> None:
    other = plain(net)
    for seed in range(calls_of_each):
        found = []
        for module in (net, other):
            y = module(points(device, seed), **more)
            (y * torch.arange(float(y.numel()), device=device).view(y.shape)).sum().backward()
            found.append([y.detach(), *gradients(module)])
        same(*found)


def test_results_may_have_any_strides(device: str) -> None:
    for after in (lambda y, _: y.T, lambda y, _: y[:, ::2], lambda y, _: y.unsqueeze(0).expand(3, -1, -1)):
        net = Simple(after).to(device)
        compare(net, device)
        assert calls(net) == 3


def test_an_object_that_is_replaced_is_noticed(device: str) -> None:
    net = Simple(lambda y, gamma: y * gamma[0], (2.0,)).to(device)
    compare(net, device)
    net.gamma = (5.0,)
    compare(net, device)


def test_a_tensor_of_python_numbers_is_a_constant(device: str) -> None:
    def after(y: Tensor, _: Any) -> Tensor:
        total = (y * 2).sum()
        again = total + 1
        del total
        return y * torch.tensor(5.0, device=device) * torch.tensor(7.0, device=device) + again

    compare(Simple(after).to(device), device)


def test_a_tensor_of_python_numbers_is_new_at_every_call(device: str) -> None:
    class Makes(Simple):
        @replays.replays
        def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
            object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
            total = torch.tensor([1.0, 2.0], device=device)
            total += 1.0
            return x * 2, total, torch.tensor(3.0, device=device)

    net = Makes(None).to(device)
    for seed in range(6):
        _, total, three = net(points(device, seed))
        assert [*total.tolist(), float(three)] == [2.0, 3.0, 3.0]
        total.zero_()
        three.zero_()
    assert calls(net) == 3


def test_rms_norms_are_replayed(device: str) -> None:
    norm = RMSNorm(8)
    net = Simple(lambda y, _: norm(y)).to(device)
    norm.to(device)
    compare(net, device)
    assert calls(net) == 3


def test_parameters_are_rounded_together_under_autocast(device: str) -> None:
    """Also one with two roles, and not a buffer that is written to in between."""

    class Rounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.third = nn.Linear(8, 8)
            self.third.weight = self.first.weight
            self.register_buffer("seen", torch.zeros(8, 8))

        @replays.replays
        def forward(self, x: Tensor) -> Tensor:
            object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
            y = nn.functional.linear(self.first(x), self.seen)
            self.seen.add_(1.0)
            y = nn.functional.linear(self.second(y) + self.first(x), self.seen)
            found: Tensor = self.third(y).float()
            return found

    net = Rounds().to(device)
    other = plain(net)
    for seed in range(6):
        found = []
        for module in (net, other):
            with torch.autocast(device, torch.bfloat16):
                y = module(points(device, seed))
            y.square().sum().backward()
            with torch.no_grad():
                for p in module.parameters():
                    p.mul_(0.9)
            found.append([y.detach(), module.seen.clone(), *gradients(module)])
        for one, two in zip(*found, strict=True):  # a weight's gradients are added in float32, elsewhere rounded first
            torch.testing.assert_close(one, two, rtol=0.02, atol=0.02 * float(two.abs().max()))
    assert calls(net) == 3
    (call,) = net.__dict__["launches"]._calls.values()
    assert [step[1:2] for step in call._forward.steps].count((torch._foreach_copy_,)) == 1


def test_a_module_that_writes_to_its_parameters_is_not_recorded(device: str) -> None:
    class Shrinks(Simple):
        @replays.replays
        def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
            with torch.no_grad():
                self.linear.weight.view(-1).mul_(0.5)
            y: Tensor = self.linear(x)
            return y

    net = Shrinks(None).to(device)
    other = plain(net)
    for seed in range(6):
        assert torch.equal(net(points(device, seed)), other(points(device, seed)))


def test_the_same_tensor_may_be_given_twice(device: str) -> None:
    net = Simple(lambda y, _: y).to(device)
    other = plain(net)
    for seed in range(4):
        x = points(device, seed)
        same([net(x, x)], [other(x, x)])
    same([net(points(device, 1), points(device, 2))], [other(points(device, 1), points(device, 2))])


def test_parameters_with_one_gradient_have_gradients_of_their_own(device: str) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

        @replays.replays
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.a + self.b, x]) * 1.5

    net, x = Sum().to(device), torch.ones(4, device=device)
    for _ in range(4):
        net(x).sum().backward()
    net.zero_grad()
    for _ in range(2):
        net(x).sum().backward()
    assert [p.grad.tolist() for p in net.parameters() if p.grad is not None] == [[3.0] * 4] * 2


def test_calls_before_a_recording_can_still_be_differentiated(device: str) -> None:
    net = Norm().to(device).eval()
    sum(net(points(device, seed)).sum() for seed in range(5)).backward()


def test_a_recording_keeps_neither_inputs_nor_module(device: str) -> None:
    net = Simple(lambda y, _: y).to(device)
    inputs = [points(device, seed) for seed in range(5)]
    for x in inputs:
        net(x).sum().backward()
    seen = [weakref.ref(x) for x in inputs] + [weakref.ref(net)]
    gc.disable()
    try:
        del x, net
        inputs.clear()
        assert not any(one() is not None for one in seen)
    finally:
        gc.enable()


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

    def noted(self: Program, *operands: Any) -> Any:
        found = real(self, *operands)
        alive.extend(
            torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()) for x in found or () if x is not None
        )
        return found

    monkeypatch.setattr(Program, "__call__", noted)
    loss = often(points(device, 0))[0].sum()
    assert not all(x.expired() for x in alive)
    del loss
    assert all(x.expired() for x in alive)


def test_gradients_may_be_differentiated_again(often: Layers, device: str) -> None:
    found = []
    for module in (often, plain(often)):
        x = points(device, 1).requires_grad_()
        y, more, _ = module(x)
        energy = y.square().sum() + more["hidden"].pow(3).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        (force.square().sum() + energy).backward()
        found.append([force.detach(), x.grad, *gradients(module)])
    assert any(grad is not None and grad.abs().max() > 0 for grad in found[0][2:])
    same(*found)
    assert calls(often) > 3
    before = calls(often)
    often(points(device, 2))
    assert calls(often) == before  # later calls are still replayed


def test_gradients_of_a_module_that_draws_are_differentiated_once(device: str) -> None:
    class Drops(nn.Module):
        @replays.replays
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x.square(), 0.5)

    net, x = Drops(), torch.ones(8, device=device, requires_grad=True)
    for _ in range(4):
        y = net(x).sum()
    with pytest.raises(RuntimeError, match="without dropout"):
        torch.autograd.grad(y, x, create_graph=True)
    record(net, False)
    torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].sum().backward()


def test_derivatives_may_be_taken_forward(often: Layers, device: str) -> None:
    x = points(device, 1)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(often(forward_ad.make_dual(x, torch.ones_like(x)))[0]).tangent
    (expected,) = torch.autograd.grad(often(x.requires_grad_())[0].sum(), x)
    assert tangent is not None
    assert torch.allclose(tangent.sum(), expected.sum(), rtol=1e-4)


class Exact(nn.Module):
    """A product that autocast must not round, and one that it rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    @replays.replays
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
        with torch.autocast(x.device.type, enabled=False):
            exact = x @ self.linear.weight
        return exact, self.linear(x)


@pytest.mark.parametrize("backward_too", [False, True])
def test_autocast_rounds_once(device: str, backward_too: bool) -> None:
    net = Exact().to(device)
    other = plain(net)
    for seed in range(6):
        found = []
        for module in (net, other):
            with torch.autocast(device, torch.bfloat16):
                exact, rounded = module(points(device, seed))
                loss = exact.square().sum() + rounded.float().sum()
                inside = backward_too and seed > 2 and module is net  # what is replayed has its dtypes
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            assert exact.dtype == torch.float32
            assert rounded.dtype == torch.bfloat16
            found.append([exact, rounded, *gradients(module)])
        assert all(torch.equal(one, two) for one, two in zip(*found, strict=True) if one is not None)
    assert calls(net) == 3


def test_results_may_be_numbers(device: str) -> None:
    class Losses(Simple):
        @replays.replays
        def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
            object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
            y = self.linear(x)
            return y.square().mean(), y.detach().amax(), x.new_zeros(()), y.abs().sum() * 2

    net = Losses(None).to(device)
    other = plain(net)
    for seed in range(6):
        found = []
        for module in (net, other):
            mean, most, zero, total = module(points(device, seed))
            (mean * 3 + total).backward()
            found.append([mean.detach(), most, zero.clone(), total.detach(), *gradients(module)])
            zero.add_(1.0)
        same(*found)
    assert calls(net) == 3


def test_a_module_may_return_nothing(device: str) -> None:
    net = Simple(lambda y, _: None).to(device)
    net.forward = MethodType(Simple.forward, net)
    for seed in range(6):
        assert net(points(device, seed)) is None
    assert calls(net) == 3


class Pair(NamedTuple):
    """Features with a name for each."""

    one: Tensor
    two: Tensor


class Scaled:
    """A tensor and a number, which is the context of the pytree."""

    def __init__(self, x: Tensor, scale: Any) -> None:
        self.x, self.scale = x, scale


register_pytree_node(Scaled, lambda s: ([s.x], s.scale), lambda leaves, scale: Scaled(*leaves, scale))


def test_arguments_may_be_named_tuples(device: str) -> None:
    class Adds(Simple):
        @replays.replays
        def forward(self, x: Tensor, other: Any = None) -> Tensor:
            object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
            return x + other.one + 2 * other.two

    net = Adds(None).to(device)
    for seed in range(5):
        x, y = points(device, seed), points(device, seed + 1)
        assert torch.equal(net(x, Pair(x, y)), x + x + 2 * y)
    assert calls(net) == 3


def test_arguments_of_other_kinds_are_told_apart_by_their_context(device: str) -> None:
    class Scales(Simple):
        @replays.replays
        def forward(self, x: Tensor, other: Any = None) -> Tensor:
            object.__setattr__(self, "_calls", getattr(self, "_calls", 0) + 1)
            return x + other.x * (other.scale if isinstance(other.scale, float) else other.scale[0])

    net, x = Scales(None).to(device), points(device, 0)
    for scale in (2.0, [3.0], 5.0, [7.0], torch.tensor([9.0], device=device)):
        for _ in range(5):
            assert torch.equal(net(x, Scaled(x, scale)), x + x * (scale if isinstance(scale, float) else scale[0]))
    assert calls(net) == 4 * 3 + 5


def test_a_module_is_not_recorded_while_another_thread_runs_it(device: str) -> None:
    inside, leave = Event(), Event()

    def after(y: Tensor, _: Any) -> Tensor:
        if current_thread() is other:
            inside.set()
            assert leave.wait(10)
        return y

    net = Simple(after).to(device)
    other = Thread(target=lambda: net(points(device, 0, rows=3)))
    other.start()
    assert inside.wait(10)
    for seed in range(5):
        net(points(device, seed))
    assert not len(net.__dict__["launches"])
    leave.set()
    other.join()
    net(points(device, 5))
    assert len(net.__dict__["launches"]) == 1


@pytest.mark.parametrize("activation", [nn.GELU("tanh"), nn.SiLU(), nn.LeakyReLU(0.3), nn.Softplus()], ids=str)
def test_activations_and_norms_of_torch_are_replayed(
    activation: nn.Module, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "LAUNCHES", replays.LAUNCHES._replace(accepts=lambda m: replays._known(m.net)))
    torch.manual_seed(0)
    net = Activated(activation).to(device)
    other = plain(net)
    for seed in range(5):
        found = []
        for one in (net, other):
            y = one(points(device, seed))
            y.square().sum().backward()
            found.append([y.detach(), *gradients(one)])
        same(*found)
    assert len(net.__dict__["launches"]) == 1
