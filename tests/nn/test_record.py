"""A recorded module gives what the module gives, in every kind of loop; other calls run unrecorded.

On a CPU an engine that runs the work again stands in for CUDA graphs: what it replays reads and writes the same memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fgnn
from fgnn.nn import FGNNLayer, build, record, recorded_call, use_backend
from fgnn.nn.recorder import Recorder
from tests.nn.graphs import features, ragged_graph, uniform_graph

GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
Inputs = tuple[Any, ...]


class AgainEngine:
    """Replay by running the work again. Counts the replays."""

    replays = 0

    def __init__(self, device: torch.device) -> None:
        pass

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()

        def again() -> None:
            AgainEngine.replays += 1
            work()

        return again


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recorded_call.ENGINES, "cpu", AgainEngine)
    AgainEngine.replays = 0


class Case:
    """A network and its inputs."""

    def __init__(self, device: str, notation: str = "FGNN(8) - Res[FC(8) - FGNN(8) - FC(8)] - FGNN(2)") -> None:
        self.graph = uniform_graph().to(device)
        self.device = device
        self.widths = dict.fromkeys(self.graph.groups, 3)
        torch.manual_seed(0)
        self.net = build(
            notation, variable_in=2, factor_in=self.widths, edge_in=self.widths, norm="batch", aggregate="sum"
        ).to(device)  # fmt: skip

    def inputs(self, seed: int, batch: int = 5) -> Inputs:
        f, gs, edges = features(self.graph, 2, self.widths, self.widths, batch=batch, seed=seed, dtype=torch.float32)
        put = [{k: x.to(self.device) for k, x in named.items()} for named in (gs, edges)]
        return self.graph, f.to(self.device), *put

    def target(self, batch: int = 5) -> Tensor:
        return torch.ones(batch, self.graph.num_variables, 2, device=self.device)


def recorder_of(net: nn.Module) -> Recorder:
    recorder: Any = net.recorder
    assert isinstance(recorder, Recorder)
    return recorder


def same(one: Any, other: Any) -> None:
    """Equal but for the order of sums, whose errors are in proportion to the largest entry."""
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(other.detach().abs().max())))
        return
    for a, b in zip(one, other, strict=True):
        same(a, b)


@pytest.fixture(params=["cpu", GPU])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def steps(case: Case, net: nn.Module, count: int, backward_per_step: int = 1, half: bool = False) -> list[Tensor]:
    """Train, also with several backward passes for each update; the losses, then parameters and buffers.

    Without Adam, which takes whole steps along gradients that are zero but for the order of their sums.
    """
    torch.manual_seed(1)
    optimiser, losses = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9), []
    for k in range(count):
        optimiser.zero_grad()
        for part in range(backward_per_step):
            with torch.autocast(case.device, torch.bfloat16, enabled=half):
                scores = net(*case.inputs(seed=10 * k + part))
            loss = (scores.float() - case.target()).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
    return [*losses, *net.parameters(), *net.buffers()]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_training_is_the_same(case: Case, parts: int, half: bool) -> None:
    with use_backend("torch" if case.device == "cpu" else None):
        wanted = steps(case, copy.deepcopy(case.net), 6, parts, half)
        net = record(copy.deepcopy(case.net))
        found = steps(case, net, 6, parts, half)
    assert len(recorder_of(net)) == 1, recorder_of(net).reason
    tolerance = 0.1 if half and case.device == "cuda" else 1e-4
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_replays_begin_with_the_third_call_and_dropout_draws_anew(case: Case) -> None:
    net = record(Case(case.device, "FGNN(8) - DR(0.5) - FC(2)").net)
    inputs = case.inputs(0)
    results = []
    for k in range(5):
        results.append(net(*inputs))
        results[-1].sum().backward()
        assert len(recorder_of(net)) == (k >= 2)
    assert not torch.equal(results[-1], results[-2])


def test_results_and_gradients_belong_to_the_caller(case: Case) -> None:
    net = record(case.net)
    outputs, gradients = [], []
    for k in range(5):
        out = net(*case.inputs(k))
        gradients.append(torch.autograd.grad(out.square().sum(), list(net.parameters())))
        outputs.append(out.detach())
    record(net, False)
    for k in (2, 3, 4):
        out = net(*case.inputs(k))
        same(outputs[k], out)
        same(gradients[k], torch.autograd.grad(out.square().sum(), list(net.parameters())))


def test_a_second_call_before_backward_runs_unrecorded(case: Case) -> None:
    net, plain = record(case.net), copy.deepcopy(case.net)
    record(plain, False)
    for _ in range(3):
        net(*case.inputs(0)).sum().backward()
        plain(*case.inputs(0)).sum().backward()
    for module in (net, plain):
        module.zero_grad()
        (module(*case.inputs(1)).square().sum() + module(*case.inputs(2)).sum()).backward()
    same([p.grad for p in net.parameters()], [p.grad for p in plain.parameters()])


def test_a_dropped_result_makes_way_for_the_next_call(case: Case) -> None:
    net = record(case.net)
    for k in range(4):
        net(*case.inputs(k))
    before = AgainEngine.replays
    net(*case.inputs(9))
    assert case.device != "cpu" or AgainEngine.replays == before + 1


def test_a_second_backward_pass_is_refused(case: Case) -> None:
    net = record(case.net)
    for _ in range(3):
        loss = net(*case.inputs(0)).sum()
        loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


def test_inputs_get_gradients_and_unused_results_do_no_harm(case: Case) -> None:
    torch.manual_seed(0)
    layer = FGNNLayer(2, case.widths, case.widths, 4).to(case.device)
    fast = record(copy.deepcopy(layer))
    for k in range(5):
        graph, f, gs, edges = case.inputs(k)
        found = []
        for module in (layer, fast):
            leaf = f.clone().requires_grad_()
            new_f, new_gs = module(graph, leaf, gs, edges)
            if k % 2:
                new_f = new_f + sum(g.sum() for g in new_gs.values())
            new_f.square().sum().backward()
            found.append([leaf.grad, *(p.grad for p in module.parameters())])
            module.zero_grad()
        same(*found)
    assert len(recorder_of(fast)) == 1


def test_without_gradients(case: Case) -> None:
    net = record(case.net.eval())
    wanted = copy.deepcopy(case.net)
    for context in (torch.no_grad, torch.inference_mode):
        for k in range(4):
            with context():
                same(net(*case.inputs(k)), wanted(*case.inputs(k)))
    assert len(recorder_of(net)) == 1


def test_modes_shapes_and_graphs_have_recordings_of_their_own(case: Case) -> None:
    net, plain = record(case.net), copy.deepcopy(case.net)
    record(plain, False)
    for k in range(12):
        training, batch = k % 2 == 0, (5, 7)[k // 2 % 2]
        for module in (net, plain):
            module.train(training)
        same(net(*case.inputs(k, batch)), plain(*case.inputs(k, batch)))
    assert len(recorder_of(net)) == 4
    other = ragged_graph().to(case.device)
    with pytest.raises(ValueError, match="any"):
        net(other, *case.inputs(0)[1:])
    recorder_of(net).keep = 2
    for _ in range(3):
        net(*case.inputs(0, 9))
    assert len(recorder_of(net)) <= 4


def test_changed_modules_are_recorded_anew(case: Case) -> None:
    net = record(case.net.eval())
    inputs = case.inputs(0)

    def check() -> None:
        plain = record(copy.deepcopy(net), False)
        for _ in range(4):
            same(net(*inputs), plain(*inputs))
        assert len(recorder_of(net)) == 1

    check()
    for p in net.parameters():
        p.data = p.data * 1.5
    check()
    net.load_state_dict({k: v * 0.5 for k, v in net.state_dict().items()}, assign=True)
    check()
    next(net.parameters()).requires_grad_(False)
    check()
    net(*inputs).sum().backward()
    assert next(net.parameters()).grad is None


def test_hooks_are_called(case: Case) -> None:
    net, seen = record(case.net), []
    for _ in range(3):
        net(*case.inputs(0))
    with net.layers[0].register_forward_hook(lambda *_: seen.append(1)):
        for _ in range(4):
            net(*case.inputs(0))
    assert len(seen) == 4


def test_a_module_that_cannot_be_recorded_runs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(x.sum())  # host synchronisation

    def refuse(_: object, work: Callable[[], None]) -> None:
        raise RuntimeError("cannot be recorded")

    monkeypatch.setattr(AgainEngine, "capture", refuse)
    net = record(Reads())
    for _ in range(6):
        assert net(torch.ones(2, device=case.device)).tolist() == [2, 2]
    assert recorder_of(net).reason
    assert len(recorder_of(net)) == 0


def test_samples_are_arguments(case: Case) -> None:
    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = case.net

        def forward(self, data: fgnn.Data) -> Tensor:
            scores: Tensor = self.net(*data.inputs)
            return scores

    net = record(Scores())
    plain = record(copy.deepcopy(net), False)
    for k in range(5):
        data = fgnn.Data(*case.inputs(k))
        same(net(data), plain(data))
    assert len(recorder_of(net)) == 1


def test_copies_have_recordings_of_their_own(case: Case) -> None:
    net = record(case.net)
    for k in range(4):
        net(*case.inputs(k))
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    for k in range(4):
        assert not other(*case.inputs(k)).any()
    assert net(*case.inputs(0)).any()
    assert recorder_of(other) is not recorder_of(net)


def test_distributed_data_parallel_reduces_the_gradients_of_replays(case: Case, tmp_path: Path) -> None:
    wanted = steps(case, copy.deepcopy(case.net), 6)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        net = DistributedDataParallel(record(case.net))
        found = steps(case, net, 6)
    finally:
        dist.destroy_process_group()
    assert len(recorder_of(case.net)) == 1
    same(found, wanted)


def test_compiled_and_transformed_calls_are_not_recorded(case: Case) -> None:
    net = record(case.net.eval())
    inputs = case.inputs(0)
    for _ in range(3):
        wanted = net(*inputs)
    parameters = {k: v.detach() for k, v in net.named_parameters()}
    same(torch.func.functional_call(net, parameters, inputs), wanted)
    same(torch.compile(net, backend="eager", fullgraph=True)(*inputs), wanted)
