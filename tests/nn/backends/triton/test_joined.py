"""The groups of a half-layer share launches, and nothing else: values and gradients are those of each by itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup
from fgnn.nn import FGNNLayer, use_backend
from fgnn.nn.backends.triton.combine import PARTS
from fgnn.nn.backends.triton.launch import in_turn
from fgnn.runtime import kernel_launch
from fgnn.runtime.triton_support import why_unavailable
from tests.nn.graphs import features

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
pytestmark = [
    pytest.mark.skipif(not GPU and why_unavailable(torch.device("cpu")) is not None, reason="needs Triton"),
    *([pytest.mark.gpu] if GPU else []),
]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kernel is launched."""
    found: Counter[str] = Counter()
    real = kernel_launch._launch

    def counted(kernel: Any, *args: Any) -> Any:
        found[kernel.fn.__name__] += 1
        return real(kernel, *args)

    monkeypatch.setattr(kernel_launch, "_launch", counted)
    return found


def graph_of(groups: int) -> FactorGraph:
    """Groups of arity 1, 2, ...; variable 6 is in no scope."""
    rng = torch.Generator().manual_seed(0)
    scopes = {
        f"g{k}": torch.stack([torch.randperm(6, generator=rng)[: k + 1] for _ in range(5 - k)]) for k in range(groups)
    }
    return FactorGraph(7, {name: FactorGroup(scope) for name, scope in scopes.items()}).to(DEVICE)


def run(layer: FGNNLayer, backend: str, graph: FactorGraph, inputs: Any) -> list[Tensor]:
    """The results, and the gradients at features and parameters."""
    f, gs, edges = inputs
    leaves = [f.requires_grad_(), *(g.requires_grad_() for g in gs.values()), *layer.parameters()]
    with use_backend(backend):
        new_f, new_gs = layer(graph, f, gs, edges)
    results = [new_f, *new_gs.values()]
    total = torch.stack([x.square().sum() for x in results]).sum()
    return [*(x.detach() for x in results), *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize(("groups", "expected", "aggregate"), [(2, 1, "max"), (3, 1, "sum"), (5, 2, "max")])
def test_groups_share_launches_and_equal_plain_torch(
    groups: int, expected: int, aggregate: Any, launches: Counter[str]
) -> None:
    graph = graph_of(groups)
    widths = dict.fromkeys(graph.groups, 3)
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 4, q="table", aggregate=aggregate, bias=True, activation="relu").to(DEVICE)
    f, gs, types = features(graph, 2, widths, widths, batch=17, types=True, dtype=torch.float32)
    inputs = (
        f.to(DEVICE), {name: g.to(DEVICE) for name, g in gs.items()},
        {name: EdgeTypes(x.to(DEVICE), 3) for name, x in types.items()},
    )  # fmt: skip
    wanted = run(layer, "torch", graph, inputs)
    assert not launches
    torch.testing.assert_close(run(layer, "triton", graph, inputs), wanted, rtol=1e-4, atol=1e-4)
    assert launches["typed_forward"] == launches["typed_nodes"] == launches["typed_weight"] == 2 * expected
    towards_variables = groups <= PARTS  # else they are combined by torch
    assert launches["combine_forward"] == launches["combine_backward"] == expected + towards_variables


def test_a_half_layer_takes_four_launches_forward_and_six_backward(launches: Counter[str]) -> None:
    """For two groups as for one: Q depends on the position, and the linear layers are in half precision."""
    graph = graph_of(2)
    widths, lengths = dict.fromkeys(graph.groups, 3), {"g0": 1, "g1": 2}
    torch.manual_seed(0)
    layer = FGNNLayer(2, widths, widths, 4, q="basis", bias=True, activation="relu", q_options={"hidden": (16,)})
    f, gs, _ = features(graph, 2, widths, widths, batch=17, dtype=torch.float32)
    inputs = (
        f.to(DEVICE), {name: g.to(DEVICE) for name, g in gs.items()},
        {name: torch.randn(length, 3).to(DEVICE) for name, length in lengths.items()},
    )  # fmt: skip
    with torch.autocast(DEVICE, torch.float16):
        run(layer.to(DEVICE), "triton", graph, inputs)
    forward = ("linear_forward", "positions_forward", "typed_forward", "combine_forward")
    backward = (
        "combine_backward", "typed_nodes", "typed_weight", "linear_backward", "positions_backward",
        "networks_backward",
    )  # fmt: skip
    assert launches == dict.fromkeys((*forward, *backward), 2)


def test_groups_of_one_launch_are_up_to_four_in_a_row_of_one_kind() -> None:
    assert [(part.start, part.stop) for part in in_turn("aaaaaabb")] == [(0, 4), (4, 6), (6, 8)]
    assert [(part.start, part.stop) for part in in_turn([None, None, "a"])] == [(0, 1), (1, 2), (2, 3)]
    assert list(in_turn([])) == []
