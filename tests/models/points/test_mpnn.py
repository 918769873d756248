"""The point network as an MPNN: the general form's numbers from the same weights, and its layout of fixed shapes."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from fgnn.data.labelled import PointSet
from fgnn.graph import Side
from fgnn.models.points import fgnn as point_fgnn
from fgnn.models.points import graph as point_graph
from fgnn.models.points.config import PointArchitecture, PointConfig
from fgnn.models.points.fgnn import PointFGNN
from fgnn.models.points.graph import cloud_edges, lay_out, neighbours
from fgnn.models.points.network import PointNetwork
from fgnn.nn import use_backend
from fgnn.nn.backends.triton.layout import Layout, layout_of
from fgnn.tasks.task import Loss
from fgnn.train.step import Step

SMALL = """Input - FGNN(16) - FC(32) - Res[FC(16) - FGNN(16) - FC(32)] - GlobalPooling -
Res[FC(16) - FGNN(16) - FC(64)] - DR(0.5) - FC(N)"""


def both_forms(network: PointFGNN, x: Tensor, category: Tensor) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    found = []
    for form in ("mpnn", "general"):
        network.form = form
        torch.manual_seed(1)  # the same dropout
        scores = network(x, category)
        found.append((scores.detach(), torch.autograd.grad(scores.square().mean(), list(network.parameters()))))
    return found


@pytest.mark.parametrize("training", [True, False])
def test_the_printed_network_gives_the_same_scores_in_both_forms(training: bool) -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 50, categories=16).train(training)
    (mpnn, mpnn_grad), (general, general_grad) = both_forms(network, torch.rand(2, 60, 3), torch.tensor([0, 7]))
    torch.testing.assert_close(mpnn, general, atol=1e-5, rtol=0)
    for mine, other in zip(mpnn_grad, general_grad, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("aggregate", ["max", "sum", "mean", "softmax(3)"])
@pytest.mark.parametrize("norm", ["batch", "layer", None])
def test_every_aggregation_gives_the_same_scores_in_both_forms(aggregate: str, norm: str | None) -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 5, categories=4, k=6, bases=4, notation=SMALL, aggregate=aggregate, norm=norm, reach=0.1)
    (mpnn, _), (general, _) = both_forms(network, torch.rand(3, 40, 3), torch.tensor([0, 3, 1]))
    torch.testing.assert_close(mpnn, general, atol=1e-5, rtol=1e-5)


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


def edges_of(layout: Layout) -> list[list[int]]:
    """What the kernels will visit for each destination: list positions, in order."""
    visited: list[list[int]] = [[] for _ in range(layout.destinations)]
    table = layout.table.tolist()
    for row in range(layout.rows):
        destination, start, stop, before = (column[row] for column in table)
        if start < stop:
            assert before == len(visited[destination])
            visited[destination] += range(start, stop)
    return visited


@pytest.mark.parametrize("side", ["factor", "variable"])
def test_the_layout_of_fixed_shapes_visits_the_same_edges(side: Side) -> None:
    index = neighbours(torch.rand(2, 40, 3, generator=torch.Generator().manual_seed(0)), 16)
    plain, fixed = cloud_edges(index), cloud_edges(index)
    lay_out(fixed, 40)
    wanted, found = (layout_of(edges, side) for edges in (plain, fixed))
    assert torch.equal(wanted.source, found.source)
    assert (wanted.edge is None) == (found.edge is None)
    assert wanted.edge is None or found.edge is None or torch.equal(wanted.edge, found.edge)
    assert edges_of(found) == edges_of(wanted)
    assert found.rows == (80 * 17 + 80 * (found.width - 1)) // found.width  # whatever the points
    assert int(found.row_ptr[-1]) <= found.rows


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None,
    reason="triton's interpreter is not chosen",
)
def test_kernels_give_the_plain_forms_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = PointFGNN(3, 5, categories=4, k=6, bases=4, notation=SMALL.replace("DR(0.5) -", ""), reach=0.1)
    x, category = torch.rand(2, 24, 3), torch.tensor([0, 2])
    plain = network(x, category)
    wanted = torch.autograd.grad(plain.square().mean(), list(network.parameters()))

    def laid_out(index: Tensor) -> object:
        edges = cloud_edges(index)
        lay_out(edges, index.shape[1])
        return edges

    monkeypatch.setattr(point_graph, "can_launch", lambda device: False)
    monkeypatch.setattr(point_fgnn, "cloud_edges", laid_out)
    with use_backend("triton"):
        fused = network(x, category)
        found = torch.autograd.grad(fused.square().mean(), list(network.parameters()))
    torch.testing.assert_close(fused, plain, atol=1e-4, rtol=1e-4)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["fgnn", "dgcnn", "pointnet"])
def test_a_training_step_is_replayed_and_learns(architecture: PointArchitecture) -> None:
    torch.manual_seed(0)
    config = PointConfig(architecture, k=16 if architecture == "fgnn" else 20)
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
