"""The batch normalisation kernels against torch's: by Triton's interpreter on the CPU, or on a GPU."""

from __future__ import annotations

import copy
import os
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fgnn.nn
from fgnn.nn import use_backend
from fgnn.nn.norm import NodeBatchNorm

INTERPRETED = (
    find_spec("triton") is not None
    and tuple(map(int, version("triton").split(".")[:2])) >= (3, 9)
    and os.environ.get("TRITON_INTERPRET") == "1"
)
PLACES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")),
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]
BOUND = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def pair(width: int, device: str) -> tuple[NodeBatchNorm, nn.BatchNorm1d]:
    """Ours, and torch's in float64 with the same scale and shift."""
    mine = NodeBatchNorm(width).to(device)
    with torch.no_grad():
        mine.norm.weight.uniform_(0.5, 1.5)
        mine.norm.bias.uniform_(-0.5, 0.5)
    oracle = nn.BatchNorm1d(width).to(device, torch.float64)
    oracle.load_state_dict(mine.norm.state_dict())
    return mine, oracle


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(2, 1), (37, 5), (130, 64), (1000, 32), (70, 200), (5000, 16)])
@pytest.mark.parametrize("relu", [True, False])
def test_values_gradients_and_running_statistics(
    device: str, dtype: torch.dtype, rows: int, width: int, relu: bool
) -> None:
    torch.manual_seed(rows + width)
    mine, oracle = pair(width, device)
    bias = torch.randn(width, device=device, requires_grad=True)
    x = (3 + torch.randn(rows, width, device=device)).to(dtype).requires_grad_()
    upstream = torch.randn(rows, width, device=device).to(dtype)
    with use_backend("triton"):
        y = mine(x, bias, relu=relu)
    y.backward(upstream)
    exact = x.detach().double().requires_grad_()
    wanted = oracle(exact + bias.detach().double())
    # near zero the two may disagree about the side of the ReLU; such entries are ignored in both
    sure = (wanted.detach().abs() > 10 * BOUND[dtype]) | (not relu)
    if relu:
        assert bool(((y.detach() > 0) == (wanted.detach() > 0))[sure].all())
    wanted = wanted * (y.detach() > 0) if relu else wanted
    wanted.backward(upstream.double())
    assert y.dtype == dtype
    assert relative(y.detach(), wanted.detach()) < BOUND[dtype]
    assert x.grad is not None
    assert exact.grad is not None
    assert oracle.weight.grad is not None
    assert oracle.bias.grad is not None
    assert mine.norm.weight.grad is not None
    assert mine.norm.bias.grad is not None
    scale = float(exact.grad.abs().max()) + 1e-3  # two rows have almost no gradient
    assert float((x.grad.double() - exact.grad).abs().max()) < BOUND[dtype] * scale + 1e-5
    assert relative(mine.norm.weight.grad, oracle.weight.grad) < BOUND[dtype]
    assert relative(mine.norm.bias.grad, oracle.bias.grad) < BOUND[dtype]
    assert bias.grad is not None
    assert not bias.grad.any()
    state, wanted_state = mine.norm.state_dict(), oracle.state_dict()
    assert relative(state["running_mean"], wanted_state["running_mean"]) < 1e-5
    assert relative(state["running_var"], wanted_state["running_var"]) < 1e-5
    assert int(state["num_batches_tracked"]) == 1


@pytest.mark.parametrize("device", PLACES)
def test_a_network_trains_to_the_same_numbers(device: str) -> None:
    torch.manual_seed(0)
    fc = fgnn.nn.FC(5, {}, 7, norm="batch").to(device)
    x = torch.randn(3, 9, 5, device=device)
    graph = fgnn.FactorGraph(9, {})
    found = []
    for backend in ("torch", "triton"):
        with use_backend(backend):
            y, _ = fc(graph, x, {})
        fc.zero_grad()
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in fc.parameters() if p.grad is not None)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)  # the interpreter has no bfloat16 products
def test_a_residual_is_added_and_receives_the_gradient(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    res = fgnn.nn.Res([fgnn.nn.FC(5, {"pair": 5}, 7, norm="batch"), fgnn.nn.FC(7, {"pair": 7}, 5, norm="batch")])
    res = res.to(device)
    graph = fgnn.FactorGraph(9, {"pair": fgnn.FactorGroup([[0, 1], [1, 2]])})
    features = [torch.randn(3, n, 5, device=device).to(dtype) for n in (9, 2)]
    found = []
    for backend in ("torch", "triton"):
        f, g = (x.clone().requires_grad_() for x in features)
        with use_backend(backend), torch.autocast(device, dtype, enabled=dtype != torch.float32):
            y, gs = res(graph, f, {"pair": g})
        (y.double().square().sum() + gs["pair"].double().sin().sum()).backward()
        assert f.grad is not None
        assert g.grad is not None
        found.append([y.detach(), gs["pair"].detach(), f.grad, g.grad])
    for a, b in zip(*found, strict=True):
        assert relative(a, b.double()) < (2e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize(("rows", "first"), [(300, 0.0), (20000, 1000.0), (3, 0.0)])
def test_precision_is_kept_far_from_zero_and_where_the_first_row_is_far_from_others(
    rows: int, first: float, device: str
) -> None:
    mine, oracle = pair(4, device)
    x = 1000 + torch.randn(rows, 4, device=device)
    x[0] += first
    with use_backend("triton"):
        y = mine(x).detach()
    wanted = oracle(x.double()).detach()
    assert float(((y.double() - wanted).abs() / (1 + wanted.abs())).max()) < 1e-3


GROUPS = {"pair": fgnn.FactorGroup([[0, 1], [1, 2]]), "triple": fgnn.FactorGroup([[0, 1, 2], [3, 4, 5], [6, 7, 8]])}


def of_three_kinds(module: nn.Module, device: str, backend: str, used: slice) -> list[Tensor]:
    """Results for variables and two groups, gradients through those that are ``used``, and buffers."""
    torch.manual_seed(3)
    graph = fgnn.FactorGraph(9, GROUPS).to(device)
    f, pair, triple = (torch.randn(2, n, 5).to(device).requires_grad_() for n in (9, 2, 3))
    module = copy.deepcopy(module).to(device)
    edges = {name: torch.eye(size, device=device) for name, size in (("pair", 2), ("triple", 3))}
    with use_backend(backend):
        y, ys = module(graph, f, {"pair": pair, "triple": triple}, edges)
    found = [y, *ys.values()]
    wanted = [p for p in module.parameters() if p.requires_grad]
    loss = torch.stack([x.sin().sum() for x in found[used]]).sum()
    grads = torch.autograd.grad(loss, [f, pair, triple, *wanted], allow_unused=True)
    zeros = [torch.zeros(()) if g is None else g for g in grads]
    return [x.detach().cpu() for x in (*found, *zeros, *module.buffers())]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("used", [slice(None), slice(1), slice(1, 3), slice(2, 3)], ids=str)
@pytest.mark.parametrize("module", ["fc", "eps", "layer", "bias", "frozen", "untracked", "shared"])
def test_kinds_of_nodes_share_launches(device: str, used: slice, module: str) -> None:
    torch.manual_seed(0)
    widths = {"pair": 5, "triple": 5}
    net: nn.Module
    if module == "layer":
        net = fgnn.nn.FGNNLayer(
            5, widths, {"pair": 2, "triple": 3}, 7, norm="batch", activation="relu", bias=True, q="table"
        )
    else:
        fc = net = fgnn.nn.FC(5, widths, 7, norm="batch")
        if module == "eps":  # another kind of job
            fc.factor["triple"][1].norm.eps = 0.1
        if module == "bias":  # batch normalisation without running statistics, for one kind
            fc.factor["pair"][1].norm = nn.BatchNorm1d(7, track_running_stats=False)
        if module == "frozen":  # while the layer around it is trained
            fc.factor["pair"][1].norm.eval()
        if module == "untracked":
            fc.factor["pair"][1].norm.track_running_stats = False
        if module == "shared":
            fc.factor["triple"][1] = fc.variable[1]
    mine, wanted = (of_three_kinds(net, device, backend, used) for backend in ("triton", "torch"))
    for a, b in zip(mine, wanted, strict=True):
        if a.shape == b.shape:
            torch.testing.assert_close(a, b, atol=3e-5, rtol=1e-4)
        else:  # the bias before a norm: exactly zero, or no gradient
            assert not a.any()
            assert not b.any()


@pytest.mark.parametrize("device", PLACES)
def test_batches_are_counted_wherever_their_number_is(device: str) -> None:
    mine = NodeBatchNorm(3).to(device)
    mine.norm.num_batches_tracked = torch.tensor(4)  # on the CPU
    x = torch.randn(9, 3, device=device)
    with use_backend("triton"):
        mine(x)
        assert int(mine.norm.num_batches_tracked) == 5
        apart = torch.zeros(2, dtype=torch.int64, device=device)
        mine.norm.num_batches_tracked = apart[1]  # at an address that kernels are not compiled for
        mine(x)
    assert apart.tolist() == [0, 1]


@pytest.mark.parametrize("device", PLACES)
def test_three_kinds_take_two_launches_each_way(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fgnn.nn.backends.triton import batch_norm

    names: list[str] = []
    plain = batch_norm.launch

    def counted(kernel: Any, *rest: Any) -> None:
        names.append(kernel.fn.__name__)
        plain(kernel, *rest)

    monkeypatch.setattr(batch_norm, "launch", counted)
    of_three_kinds(fgnn.nn.FC(5, {"pair": 5, "triple": 5}, 7, norm="batch"), device, "triton", slice(None))
    assert names == ["statistics", "apply", "gradient_sums", "apply_gradient"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("rows", "width"), [(32768, 512), (300_000, 64), (100_000, 3), (557_056, 128)])
def test_shares_that_fill_a_gpu_are_added_up_in_one_order(rows: int, width: int) -> None:
    torch.manual_seed(rows)
    mine, oracle = pair(width, "cuda")
    x = (3 + torch.randn(rows, width, device="cuda")).requires_grad_()
    upstream = torch.randn(rows, width, device="cuda")
    found = []
    for _ in range(20):
        mine.norm.load_state_dict({**oracle.state_dict(), "running_mean": x.new_zeros(width)})
        mine.zero_grad()
        x.grad = None
        y = mine(x, relu=False)
        y.backward(upstream)
        found.append([y.detach(), x.grad, mine.norm.weight.grad, mine.norm.running_mean.clone()])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    exact = x.detach().double().requires_grad_()
    wanted = oracle(exact)
    wanted.backward(upstream.double())
    assert oracle.weight.grad is not None
    assert relative(found[0][0], wanted.detach()) < BOUND[torch.float32]
    assert relative(found[0][1], exact.grad) < BOUND[torch.float32]
    assert relative(found[0][2], oracle.weight.grad) < BOUND[torch.float32]
    assert relative(found[0][3], oracle.running_mean) < 1e-5


@pytest.mark.parametrize("device", PLACES)
def test_a_hooked_norm_is_called_and_the_others_are_fused(device: str) -> None:
    fc = fgnn.nn.FC(5, {"pair": 5, "triple": 5}, 7, norm="batch").to(device)
    seen: list[tuple[int, ...]] = []
    fc.factor["pair"][1].norm.register_forward_hook(lambda module, args, y: seen.append(tuple(y.shape)))
    of_three_kinds(fc, device, "triton", slice(None))
    assert seen == [(4, 7)]
