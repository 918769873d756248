"""The paper's point network: public layers on a graph of neighbours, whose hints change no number."""

from __future__ import annotations

import copy
import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from fgnn.data.labelled import PointSet
from fgnn.graph import FactorGraph, FactorGroup
from fgnn.models.points import fgnn as point_fgnn
from fgnn.models.points.config import PointArchitecture, PointConfig
from fgnn.models.points.fgnn import GROUP, PointFGNN, neighbours
from fgnn.models.points.network import PointNetwork
from fgnn.nn import build, record, use_backend
from fgnn.tasks.task import Loss
from fgnn.train.step import Step

SMALL = """Input - FGNN(16) - FC(32) - Res[FC(16) - FGNN(16) - FC(32)] - GlobalPooling -
Res[FC(16) - FGNN(16) - FC(64)] - DR(0.5) - FC(N)"""


def without_hints(index: Tensor) -> FactorGraph:
    """The same graph as a user would build it: cloud by cloud, then concatenated, with nothing said beforehand."""
    graphs = [FactorGraph(len(rows), {GROUP: FactorGroup(rows)}) for rows in index]
    graph = FactorGraph.concat(graphs)
    return FactorGraph(graph.num_variables, graph.groups, graph.variable_ptr, graph.factor_ptr)


@pytest.mark.parametrize("aggregate", ["max", "sum", "mean", "softmax(3)"])
@pytest.mark.parametrize("norm", ["batch", "layer", None])
def test_hints_change_no_number(aggregate: str, norm: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 5, categories=4, k=6, bases=4, notation=SMALL, aggregate=aggregate, norm=norm, reach=0.1)
    x, category = torch.rand(3, 40, 3), torch.tensor([0, 3, 1])
    results = []
    for make_graph in (point_fgnn.neighbour_graph, without_hints):
        monkeypatch.setattr(point_fgnn, "neighbour_graph", make_graph)
        torch.manual_seed(1)  # the same dropout
        scores = network(x, category)
        results.append((scores.detach(), *torch.autograd.grad(scores.square().mean(), list(network.parameters()))))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def test_ten_lines_of_public_layers_build_the_network() -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 5, k=6, bases=4, notation=SMALL).eval()
    body = build(
        SMALL, variable_in=3, factor_in={GROUP: 3}, edge_in={GROUP: 3}, num_classes=5,
        schedule="parallel", norm="batch", q_options={"bases": 4},
    ).eval()  # fmt: skip
    body.load_state_dict(network.network.state_dict())
    x = torch.rand(1, 40, 3)
    index = neighbours(x, 6)
    graph = FactorGraph(40, {GROUP: FactorGroup(index[0])})
    t = x[0][:, None] - x[0][index[0]]
    torch.testing.assert_close(body(graph, x[0], {GROUP: x[0]}, {GROUP: t}), network(x)[0], atol=1e-6, rtol=1e-5)


def test_a_point_is_first_among_its_neighbours_even_among_copies_of_itself() -> None:
    x = torch.rand(2, 50, 3, generator=torch.Generator().manual_seed(0))
    x[0, 10:40] = x[0, 10]  # thirty points at one place
    index = neighbours(x, 8)
    assert torch.equal(index[..., 0], torch.arange(50).expand(2, 50))
    assert all(len(set(row)) == 9 for row in index[0].tolist())
    far = torch.cdist(x[1], x[1]).fill_diagonal_(-1.0)
    wanted = far.argsort(1)[:, :9]
    assert torch.equal(index[1].sort(1).values, wanted.sort(1).values)
    scores = PointFGNN(3, 5, k=8, bases=4, notation=SMALL).eval()(x)
    assert torch.isfinite(scores).all()


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 16 points"):
        PointFGNN(3, 5)(torch.rand(1, 16, 3))


@pytest.mark.parametrize("reach", [0.5, 0.05])
def test_the_unit_of_edge_features_is_a_scale_of_qs_first_layer(reach: float) -> None:
    torch.manual_seed(0)
    scaled = PointFGNN(3, 5, k=6, bases=4, notation=SMALL, reach=reach).eval()
    plain = PointFGNN(3, 5, k=6, bases=4, notation=SMALL).eval()
    weights = scaled.state_dict()
    for name in weights:
        if name.endswith("matrix.net.0.weight"):
            weights[name] = weights[name] / reach
    plain.load_state_dict(weights)
    x = torch.rand(2, 30, 3)
    torch.testing.assert_close(scaled(x), plain(x), atol=1e-5, rtol=1e-4)


INTERPRETED = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None,
    reason="triton's interpreter is not chosen",
)


@INTERPRETED
def test_kernels_give_the_torch_backends_numbers() -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 5, categories=4, k=6, bases=4, notation=SMALL.replace("DR(0.5) -", ""), reach=0.1)
    x, category = torch.rand(2, 24, 3), torch.tensor([0, 2])
    plain = network(x, category)
    wanted = torch.autograd.grad(plain.square().mean(), list(network.parameters()))
    with use_backend("triton"):
        fused = network(x, category)
        found = torch.autograd.grad(fused.square().mean(), list(network.parameters()))
    torch.testing.assert_close(fused, plain, atol=1e-4, rtol=1e-4)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=INTERPRETED), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_steps_over_other_points_replay_the_launches_of_the_first(
    device: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step has another graph; what is replayed searches its neighbours and sorts its edges again."""
    monkeypatch.setattr(point_fgnn, "has_kernel", lambda x, k: True)
    torch.manual_seed(0)
    network = PointFGNN(3, 5, categories=4, k=6, bases=4, notation=SMALL.replace("DR(0.5) -", ""), reach=0.1)
    network = network.to(device).train(training)
    plain = record(copy.deepcopy(network), False)
    rng = torch.Generator().manual_seed(1)
    with use_backend("triton"):
        for _ in range(6):
            x = torch.rand(2, 24, 3, generator=rng).to(device)
            category = torch.randint(4, (2,), generator=rng).to(device)
            results = []
            for net in (network, plain):
                with torch.set_grad_enabled(training):
                    scores = net(x, category)
                grads = torch.autograd.grad(scores.square().mean(), list(net.parameters())) if training else ()
                results.append([scores.detach(), *grads, *net.buffers()])
            torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)
    launches = network.__dict__["launches"]
    assert len(launches) == 1, launches.reason


@INTERPRETED
def test_a_search_on_the_host_is_not_replayed() -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 5, k=6, bases=4, notation=SMALL).eval()
    with use_backend("triton"), torch.no_grad():
        for seed in range(5):
            x = torch.rand(1, 24, 3, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(network(x), record(copy.deepcopy(network), False)(x))
    assert len(network.__dict__["launches"]) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["fgnn", "hierarchical", "dgcnn", "pointnet"])
def test_a_training_step_is_replayed_and_learns(architecture: PointArchitecture) -> None:
    torch.manual_seed(0)
    config = PointConfig(architecture, k=20 if architecture == "dgcnn" else 15, samples=(128, 64, 32))
    network = PointNetwork(config, 3, 50, 16).cuda()
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(4, 256, 3, generator=generator)
    batch = PointSet(features, (features[..., 0] * 4).to(torch.int16), torch.tensor([0, 1, 2, 3])).to("cuda")
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, fused=True, capturable=True)

    def loss(batch: PointSet) -> Loss:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            scores, more = network(batch.features, batch.category)
            target = batch.label.long().flatten()
            rows = scores.flatten(0, 1).float()
            return Loss(nn.functional.cross_entropy(rows, target) + more, (rows.argmax(-1) == target).float().mean())

    told: list[str] = []
    step = Step(network, loss, after=optimiser.step, capture=True, log=told.append)
    losses = [float(step(batch).loss) for _ in range(60)]
    assert step.captured, told
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.gpu
def test_gpu_and_cpu_agree_on_scores() -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 50, categories=16).eval()
    x, category = torch.rand(2, 300, 3), torch.tensor([3, 9])
    wanted = network(x, category)
    found = network.cuda()(x.cuda(), category.cuda()).cpu()
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
