"""The kernel of the small linear layer, by Triton's interpreter and on a GPU, against float64."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch

from fgnn.nn import use_backend
from fgnn.nn.backends import edge_terms, linear_passes
from fgnn.nn.backends.edge_terms import Terms
from fgnn.nn.backends.linear import has_kernel, linear
from fgnn.nn.backends.triton import positions
from fgnn.nn.backends.triton.late_sum import LateSum
from fgnn.nn.backends.triton.linear import Linear
from fgnn.nn.backends.triton.positions import Positions
from fgnn.nn.edge_net import EdgeNet

_TRITON = find_spec("triton") is not None and tuple(map(int, version("triton").split(".")[:2])) >= (3, 9)
DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            not _TRITON or os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
        ),
    ),
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]
SHAPES = [((200,), 3, 16), ((2, 70), 64, 64), ((5, 3, 9), 20, 33), ((300,), 128, 128), ((1,), 1, 1)]


SEVERAL = [[(5, 300), (20, 40)], [(64, 70), (64, 200), (3, 1)], [(9, 10)] * 5, [(256, 20), (130, 9)]]


def _draw(lead: tuple[int, ...], k: int, o: int, device: str) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(k)
    drawn = (torch.randn(*shape, generator=make) for shape in ((*lead, k), (o, k), (o,), (*lead, o)))
    return [x.to(device) for x in drawn]


def _distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    found, wanted = found.detach().cpu().double(), wanted.detach().cpu().double()
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("lead", "k", "o"), SHAPES, ids=str)
def test_value_and_gradients_match_float64(
    lead: tuple[int, ...], k: int, o: int, bias: bool, relu: bool, device: str
) -> None:
    x, weight, beta, upstream = _draw(lead, k, o, device)
    dtype = torch.float16
    given = [t.to(dtype).float().requires_grad_() for t in (x, weight, beta)]  # exact in half precision
    exact = [t.detach().double().requires_grad_() for t in given]
    with use_backend("triton"), torch.autocast(device, dtype):
        assert has_kernel(given[0], given[1])
        found = linear(given[0], given[1], given[2] if bias else None, relu=relu)
    wanted = torch.nn.functional.linear(exact[0], exact[1], exact[2] if bias else None)
    wanted = wanted.relu() if relu else wanted
    upstream = upstream.to(dtype)
    found.backward(upstream)
    wanted.backward(upstream.double())
    assert found.dtype == dtype
    assert _distance(found, wanted) < 2e-3
    for mine, other in zip(given[: 2 + bias], exact, strict=False):
        assert mine.grad is not None
        assert mine.grad.dtype == torch.float32
        assert _distance(mine.grad, other.grad) < 4e-3  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    "sizes", [[(5, 300), (20, 40)], [(64, 70), (64, 200), (3, 1)], [(9, 10)] * 5, [(256, 20), (130, 9)]], ids=str
)
def test_several_layers_at_once_equal_as_many_layers(
    sizes: list[tuple[int, int]], relu: bool, frozen: bool, device: str
) -> None:
    """Of one output width, in one launch for up to four of them; only every other layer has a bias."""
    dtype, layers, exact, up, wants = torch.float16, [], [], [], []
    for index, (k, rows) in enumerate(sizes):
        *operands, upstream = _draw((rows,), k, 33, device)
        given = [t.to(dtype).float() for t in operands[: 3 - index % 2]]
        want = (index != 1, not frozen, not frozen and len(given) > 2)
        layers.append(Linear(*given))
        exact.append([t.double().requires_grad_(w) for t, w in zip(given, want, strict=False)])
        up.append(upstream.to(dtype))
        wants.append(want)
    found = linear_passes.forward(layers, relu, dtype, True)
    grads = linear_passes.backward(layers, found if relu else [None] * len(layers), up, dtype, True, wants)
    for y, three, leaves, upstream in zip(found, grads, exact, up, strict=True):
        wanted = torch.nn.functional.linear(*leaves)
        wanted = wanted.relu() if relu else wanted
        assert _distance(y, wanted) < 2e-3
        if wanted.requires_grad:
            wanted.backward(upstream.double())
        for mine, other in zip(three, leaves, strict=False):
            assert other.grad is None or mine is not None
            if mine is not None and other.grad is not None:
                assert _distance(mine, other.grad) < 4e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("counts", [[3], [2, 8], [1, 4, 20, 2, 3]], ids=str)
def test_matrices_at_positions_match_float64(counts: list[int], device: str) -> None:
    """φ and Q of several groups by one launch, and the gradients at W and at the networks, from three shares."""
    torch.manual_seed(0)
    groups, nets = [], []
    for count in counts:
        net = EdgeNet([count, 16, 7]).to(device)
        nets.append(net)
        groups.append(
            Positions(
                torch.randn(count, count, device=device),
                [p.detach() for p in net.parameters()],
                torch.randn(7, 9, 20, device=device),
            )
        )
    found = positions.forward(groups, torch.float16)
    shares = [torch.randn(3, count, 9, 20, device=device) for count in counts]
    other = LateSum(torch.randn(70, 2, 66, device=device))  # more shares and columns than a program has at once
    grads = positions.backward(groups, [phi for phi, _ in found], shares, [other])
    assert other.total is not None
    assert _distance(other.value(), other.shares.double().sum(0)) < 1e-6
    for (t, _, weight), net, (phi, q), share, mine in zip(groups, nets, found, shares, grads, strict=True):
        exact, w = net.double(), weight.double().requires_grad_()
        wanted = exact(t.double())
        matrices = torch.einsum("at,tmn->amn", wanted, w)
        assert phi.dtype == weight.dtype
        assert q.dtype == torch.float16
        assert _distance(phi, wanted) < 2e-3
        assert _distance(q, matrices) < 2e-3
        matrices.backward(share.double().sum(0))
        for one, other in zip(mine, (w, *exact.parameters()), strict=True):
            assert other.grad is not None
            assert _distance(one, other.grad) < 4e-3


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_may_have_any_strides(device: str) -> None:
    x, weight, _, upstream = _draw((50,), 6, 7, device)
    dtype = torch.float16
    grads = []
    for given in (upstream.to(dtype), upstream.to(dtype).t().contiguous().t()):
        leaf = weight.clone().requires_grad_()
        with use_backend("triton"):
            linear(x.to(dtype), leaf).backward(given)
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0)


def test_torch_serves_without_a_gpu() -> None:
    x, weight, beta, _ = _draw((4,), 5, 6, "cpu")
    assert not has_kernel(x, weight)
    torch.testing.assert_close(linear(x, weight, beta), torch.nn.functional.linear(x, weight, beta), rtol=0, atol=0)
    with use_backend("torch"), torch.autocast("cpu", torch.bfloat16):
        assert not has_kernel(x, weight)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("edges", "terms"), [(2, 16), (300, 7)])
def test_the_network_on_edges_matches_float64(edges: int, terms: int, device: str) -> None:
    """φ by one kernel each way, whose gradients at all four parameters come from one sum."""
    torch.manual_seed(0)
    net = EdgeNet([3, 32, terms]).to(device)
    exact = EdgeNet([3, 32, terms]).to(device).double()
    exact.load_state_dict(net.state_dict())
    t, upstream = torch.randn(edges, 3, device=device), torch.randn(edges, terms, device=device)
    parameters, how = [p.detach() for p in net.parameters()], Terms(False, False, True)
    found, hidden = edge_terms.coefficients(t, parameters, how, torch.float16)
    wanted = exact(t.double())
    _, grads = edge_terms.backward(upstream.half(), found, hidden, t, parameters, how, False)
    wanted.backward(upstream.half().double())
    assert _distance(found, wanted) < 2e-3
    for one, other in zip(grads, exact.parameters(), strict=True):
        assert one is not None
        assert other.grad is not None
        assert _distance(one, other.grad) < 5e-3
