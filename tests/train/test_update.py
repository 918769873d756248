"""The update after the gradients: rate, clipping, optimiser and average."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fgnn.tasks.recipe import Optimiser
from fgnn.tasks.task import Loss
from fgnn.train.step import Step
from fgnn.train.update import Update, make_optimiser, move_average
from tests.tasks.helpers import small_recipe

CPU = torch.device("cpu")


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def test_the_rate_follows_the_step() -> None:
    net = network()
    update = Update(small_recipe(optimiser=Optimiser("adam", rate=1.0)), net, None, CPU)
    before = net.weight.detach().clone()
    net(torch.ones(1, 3)).sum().backward()
    update.prepare(0, 0.0)
    update()
    assert torch.equal(net.weight, before)
    update.prepare(1, 0.01)
    update()
    assert 0.009 < float((net.weight - before).detach().abs().max()) < 0.02


def test_gradients_are_clipped() -> None:
    net = network()
    update = Update(small_recipe(optimiser=Optimiser("adam", clip=0.5)), net, None, CPU)
    (1000 * net(torch.ones(1, 3)).sum()).backward()
    update.prepare(0, 0.01)
    update()
    norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
    torch.testing.assert_close(float(norm), 0.5, rtol=1e-4, atol=0)


def test_the_average_moves_faster_at_first() -> None:
    net = network()
    average = copy.deepcopy(net)
    with torch.no_grad():
        net.weight.add_(1.0)
    update = Update(small_recipe(ema=0.999, optimiser=Optimiser("adam", rate=1e-12)), net, average, CPU)
    start = average.weight.detach().clone()
    net(torch.ones(1, 3)).sum().backward()
    update.prepare(0, 0.0)
    update()
    torch.testing.assert_close(average.weight - start, torch.full_like(start, 0.9))
    with torch.no_grad():
        average.weight.copy_(start)
    update.prepare(10**6, 0.0)
    update()
    torch.testing.assert_close(average.weight - start, torch.full_like(start, 0.001), rtol=1e-3, atol=1e-5)


def test_a_tensor_share_moves_the_average_the_same() -> None:
    one, two, net = network(), network(), network()
    with torch.no_grad():
        net.weight.add_(torch.randn(2, 3))
    move_average(one, net, 0.25)
    move_average(two, net, torch.tensor(0.25))
    torch.testing.assert_close(one.weight, two.weight)


def test_only_matrices_decay() -> None:
    groups = make_optimiser(small_recipe(optimiser=Optimiser("adamw", weight_decay=0.1)), network(), CPU).param_groups
    assert [(g["weight_decay"], [p.dim() for p in g["params"]]) for g in groups] == [(0.1, [2]), (0.0, [1])]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_step_equals_an_eager_one() -> None:
    recipe = small_recipe(ema=0.9, optimiser=Optimiser("adamw", rate=1e-2, clip=1.0))
    device = torch.device("cuda")
    ends = []
    for capture in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
        average = copy.deepcopy(net)
        update = Update(recipe, net, average, device)

        def loss(x: torch.Tensor, net: nn.Module = net) -> Loss:
            value = net(x).square().mean()
            return Loss(value, value.detach())

        step = Step(net, loss, after=update, capture=capture)
        for n in range(12):
            update.prepare(n, 1e-2 / (n + 1))
            step(torch.randn(32, 8, generator=torch.Generator().manual_seed(n)).to(device))
        assert step.captured == capture
        ends.append([p.detach().clone() for p in (*net.parameters(), *average.parameters())])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
