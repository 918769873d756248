"""The hierarchical point FGNN: its stages against plain loops, and what it promises of points and clouds."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from fgnn.models import PointConfig, PointNetwork
from fgnn.models.points.fgnn import neighbours
from fgnn.models.points.hierarchy import HierarchicalFGNN, Stages
from fgnn.models.points.hierarchy_blocks import Down, Dropped, Level, interpolation
from fgnn.nn import count_parameters, use_backend

SMALL = Stages(samples=(24, 12), widths=(16, 24, 32), inner=(8, 8, 16), depths=(1, 1, 1))


def network(**changes: object) -> HierarchicalFGNN:
    torch.manual_seed(0)
    return HierarchicalFGNN(3, 5, 4, SMALL, **({"k": 5, "bases": 3, "reach": 0.2, "head": 16} | changes))  # type: ignore[arg-type]


def clouds(seed: int = 0, points: int = 40) -> Tensor:
    return torch.rand(3, points, 3, generator=torch.Generator().manual_seed(seed))


def test_the_order_of_points_changes_nothing() -> None:
    net, x, category = network().eval(), clouds(), torch.tensor([0, 3, 1])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(net(x, category)[:, order], net(x[:, order], category), atol=1e-5, rtol=1e-4)


def test_clouds_do_not_see_each_other() -> None:
    net, x, category = network().eval(), clouds(), torch.tensor([0, 3, 1])
    alone = torch.cat([net(x[b : b + 1], category[b : b + 1]) for b in range(3)])
    torch.testing.assert_close(net(x, category), alone, atol=1e-5, rtol=1e-4)


def test_every_parameter_and_the_category_matter() -> None:
    net, x = network(), clouds()
    scores = net(x, torch.tensor([0, 3, 1]))
    assert scores.shape == (3, 40, 5)
    scores.square().mean().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in net.parameters())
    net.eval()
    assert not torch.allclose(net(x, torch.tensor([0, 3, 1])), net(x, torch.tensor([1, 3, 1])))


def test_sampled_factors_read_their_own_points() -> None:
    torch.manual_seed(0)
    x, f = clouds()[:1], torch.randn(1, 40, 6)
    level, chosen = Level(x, neighbours(x, 4), 0.5), torch.tensor([[7, 3, 30]])
    down = Down(6, 5, 8, bases=3).eval()
    half = down.to_factors
    wanted = []
    for c in chosen[0].tolist():
        messages = []
        for i in level.index[0, c].tolist():
            q = half.edge_messages.matrix.matrix((x[0, c] - x[0, i]) / 0.5)
            messages.append(q @ half.edge_messages.message(f[0, c], f[0, i]))
        wanted.append(torch.stack(messages).amax(0))
    g = half.output(torch.stack(wanted), None)
    own = f[0, chosen[0]]
    torch.testing.assert_close(down(f, level, chosen)[0], down.norm(down.own(own) + down.read(g), relu=True))


def test_interpolation_is_exact_at_coarse_points_and_an_average_elsewhere() -> None:
    fine = clouds().double().float()
    coarse = fine[:, ::4]
    weights = interpolation(fine, coarse)
    torch.testing.assert_close(weights.sum(2), torch.ones(3, 40))
    assert ((weights > 0).sum(2) == 3).all()
    torch.testing.assert_close(weights[:, ::4], torch.eye(10).expand(3, -1, -1), atol=1e-4, rtol=0)
    far = torch.cdist(fine[0], coarse[0])
    three = far[5].argsort()[:3]
    inverse = 1 / far[5, three].square()
    torch.testing.assert_close(weights[0, 5, three], inverse / inverse.sum(), atol=1e-4, rtol=1e-3)


def test_dropped_branches_keep_their_mean_and_fall_by_cloud() -> None:
    torch.manual_seed(0)
    drop, x = Dropped(0.5), torch.ones(4000, 3, 2)
    y = drop(x)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert bool((y == y[:, :1, :1]).all())
    assert float(y.mean()) == pytest.approx(1.0, abs=0.05)
    assert drop.eval()(x) is x
    with pytest.raises(ValueError, match="got 1"):
        Dropped(1.0)


def test_the_published_sizes() -> None:
    config = PointConfig("hierarchical", k=15, bases=8, reach=0.05)
    net = PointNetwork(config, 3, 50, 16).net
    assert isinstance(net, HierarchicalFGNN)
    assert count_parameters(net) <= 6_000_000
    assert net.notation.startswith(
        "FGNN(32) - FC(96) - Res[FC(32) - FGNN(32) - FC(96)] - Res[FC(192) - FC(96)] - Down(512)"
    )


def test_without_categories_and_with_more_features() -> None:
    net = PointNetwork(
        PointConfig("hierarchical", k=5, bases=2, samples=(16,), widths=(8, 8), inner=(8, 8), depths=(0, 1)), 5, 3
    )
    scores, loss = net.eval()(torch.rand(2, 30, 5))
    assert scores.shape == (2, 30, 3)
    assert float(loss) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stages(samples=(8,)), "each of the 2 stages.*4"),
        (lambda: Stages(samples=(8, 9, 2)), r"\[8, 9, 2\]"),
        (lambda: HierarchicalFGNN(2, 5, 0, SMALL), "got 2 columns"),
        (lambda: HierarchicalFGNN(3, 5, 0, SMALL, k=12), "more than 12 points.*got 12"),
        (lambda: HierarchicalFGNN(3, 5, 0, SMALL, k=3, reach=0.0), "reach > 0"),
        (lambda: network()(clouds(points=23), torch.zeros(3, dtype=torch.long)), "at least 24 points.*23"),
        (lambda: network()(clouds()), "category below 4"),
    ],
)  # fmt: skip
def test_mistakes_are_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None,
    reason="triton's interpreter is not chosen",
)
def test_kernels_give_the_torch_backends_numbers() -> None:
    net, x, category = network(dropout=0.0, drop_path=0.0), clouds()[:2], torch.tensor([0, 2])
    results = []
    for backend in ("torch", "triton"):
        torch.manual_seed(1)  # the same first points
        with use_backend(backend):
            scores = net(x, category)
            results.append((scores.detach(), *torch.autograd.grad(scores.square().mean(), list(net.parameters()))))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
def test_gpu_and_cpu_agree_on_scores() -> None:
    torch.manual_seed(0)
    net: nn.Module = HierarchicalFGNN().eval()
    x, category = torch.rand(2, 600, 3), torch.tensor([3, 9])
    wanted = net(x, category)
    found = net.cuda()(x.cuda(), category.cuda()).cpu()
    # A rounding error can swap two equally distant neighbours, which changes the scores of a few points.
    far = ((found - wanted).abs() > 1e-3 + 1e-3 * wanted.abs()).flatten(0, 1).any(1)
    assert float(far.float().mean()) < 0.01
    torch.testing.assert_close(found, wanted, atol=5e-2, rtol=5e-2)
