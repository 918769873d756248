"""PointNet, DGCNN and PointCNN: their published shapes, counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fgnn.models.points.blocks import nearest
from fgnn.models.points.dgcnn import DGCNN, DGCNNPart, edge_features
from fgnn.models.points.pointcnn import SHAPENET_DOWN, SHAPENET_UP, PointCNN, XBack, XLayer, sample
from fgnn.models.points.pointnet import PointNet, PointNetPart, orthogonality


def _count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def _layers(*widths: int, bias: bool = True, norm: bool = True) -> int:
    """Parameters of dense layers through these widths: weights, biases, and two per feature for the norm."""
    pairs = pairwise(widths)
    return sum(a * b + (b if bias else 0) + (2 * b if norm else 0) for a, b in pairs)


def test_pointnet_for_scenes() -> None:
    wanted = _layers(9, 64, 64, 64, 128, 1024) + _layers(1024, 256, 128) + _layers(1152, 512, 256)
    assert _count(PointNet()) == wanted + _layers(256, 13, norm=False) == 1_174_669
    assert PointNet(2, 2).eval()(torch.rand(3, 30, 2)).shape == (3, 30, 2)


def test_pointnet_for_parts_joins_4944_features() -> None:
    small = _layers(3, 64, 128, 1024) + _layers(1024, 128, 128) + _layers(128, 9, norm=False)
    large = _layers(128, 256, 1024) + _layers(1024, 512, 256) + _layers(256, 128 * 128, norm=False)
    body = _layers(3, 64, 128, 128) + _layers(128, 512, 2048)
    head = _layers(4944, 256, 256, 128) + _layers(128, 50, norm=False)
    network = PointNetPart()
    assert _count(network) == small + large + body + head
    scores, transform = network.eval()(torch.rand(2, 40, 3), torch.eye(16)[:2])
    assert scores.shape == (2, 40, 50)
    assert torch.equal(transform, torch.eye(128).expand(2, -1, -1))
    assert orthogonality(transform) == 0


def test_dgcnn_for_scenes_has_the_published_number_of_weights() -> None:
    network = DGCNN(variant="torch")
    statistics = sum(b.numel() for b in network.buffers() if b.is_floating_point())
    assert _count(network) + statistics == 987_776  # counted with the running statistics, as published
    convs = _layers(18, 64, 64) + _layers(128, 64, 64) + _layers(128, 64)
    rest = _layers(192, 1024) + _layers(1216, 512, 256) + _layers(256, 13, norm=False)
    assert _count(DGCNN()) == convs + rest
    assert DGCNN(2, 2, graph_columns=None).eval()(torch.rand(3, 30, 2)).shape == (3, 30, 2)


def _published(network: nn.Module, x: Tensor, category: Tensor | None, k: int) -> Tensor:
    """DGCNN as its implementation in torch computes it: 1×1 convolutions, torch's batch norm, leaky ReLU.

    The weights are those of ``network`` in the order of its layers.
    """
    layers = iter([m for m in network.modules() if isinstance(m, nn.Linear | nn.BatchNorm1d)])

    def dense(h: Tensor) -> Tensor:  # (B, C, ...)
        linear, norm = next(layers), next(layers)
        assert isinstance(linear, nn.Linear)
        assert isinstance(norm, nn.BatchNorm1d)
        assert linear.bias is None
        h = torch.einsum("oc,bc...->bo...", linear.weight, h)
        h = functional.batch_norm(h, norm.running_mean, norm.running_var, norm.weight, norm.bias, False)  # torch's eps
        return functional.leaky_relu(h, 0.2)

    def edges(h: Tensor, space: Tensor) -> Tensor:  # (B, C, P) -> (B, 2C, P, k)
        index = (-torch.cdist(space.mT, space.mT)).topk(k, -1).indices
        near = torch.stack([h[b][:, index[b]] for b in range(len(h))])
        here = h[..., None].expand_as(near)
        return torch.cat([near - here, here], 1)

    h = x.mT
    space = h if category is not None else h[:, 6:9]
    if category is not None:
        whole = dense(dense(dense(edges(h, h))).amax(3)).amax(2)
        whole = dense(dense(whole))
        matrix = next(layers)
        assert isinstance(matrix, nn.Linear)
        h = (x @ matrix(whole).view(-1, 3, 3)).mT
        space = h
    one = dense(dense(edges(h, space))).amax(3)
    two = dense(dense(edges(one, one))).amax(3)
    three = dense(edges(two, two)).amax(3)
    local = torch.cat([one, two, three], 1)
    whole = dense(local).amax(2)
    if category is not None:
        whole = torch.cat([whole, dense(category)], 1)
    h = torch.cat([whole[..., None].expand(-1, -1, x.shape[1]), local], 1)
    for _ in range(2 if category is None else 3):
        h = dense(h)
    last = next(layers)
    assert isinstance(last, nn.Linear)
    return torch.einsum("oc,bcp->bpo", last.weight, h)


@pytest.mark.parametrize("parts", [False, True])
def test_the_torch_variants_compute_what_published_weights_were_trained_for(parts: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    network = (DGCNNPart(k=6, variant="torch") if parts else DGCNN(k=6, variant="torch")).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):  # small variances tell one eps from another
            assert module.running_var is not None
            module.running_var.uniform_(1e-4, 1e-3, generator=generator)
    x = torch.rand(2, 30, 3 if parts else 9, generator=generator)
    category = torch.eye(16)[:2] if parts else None
    with torch.no_grad():
        wanted = _published(network, x, category, 6)
        found = network(x, category) if parts else network(x)
    torch.testing.assert_close(found, wanted, atol=1e-3 * float(wanted.abs().max()), rtol=1e-3)


def test_dgcnn_for_parts() -> None:
    align = _layers(6, 64, 128) + _layers(128, 1024) + _layers(1024, 512, 256) + _layers(256, 9, norm=False)
    convs = _layers(6, 64, 64) + _layers(128, 64, 64) + _layers(128, 64)
    rest = _layers(192, 1024) + _layers(16, 64) + _layers(1280, 256, 256, 128) + _layers(128, 50, norm=False)
    network = DGCNNPart()
    assert _count(network) == align + convs + rest
    assert network.eval()(torch.rand(2, 40, 3), torch.eye(16)[:2]).shape == (2, 40, 50)


@pytest.mark.parametrize("network", [PointNet(4, 3), DGCNN(4, 3, k=5, graph_columns=(0, 3))])
def test_the_order_of_points_does_not_matter(network: nn.Module) -> None:
    network.eval()
    x = torch.rand(2, 20, 4, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(network(x)[:, order], network(x[:, order]), atol=1e-5, rtol=1e-4)


def test_edges_hold_the_point_and_the_difference() -> None:
    x = torch.tensor([[[0.0], [1.0], [5.0]]])
    index = nearest(x, 2)
    assert index.tolist() == [[[0, 1], [1, 0], [2, 1]]]
    assert edge_features(x, index)[0, 2].tolist() == [[5.0, 0.0], [5.0, -4.0]]
    assert edge_features(x, index, swap=True)[0, 2].tolist() == [[0.0, 5.0], [-4.0, 5.0]]


def test_pointcnn_goes_down_and_up_again() -> None:
    down = [XLayer(4, 1, None, 16), XLayer(4, 2, 12, 32)]
    up = [XBack(4, 1, 1, 1), XBack(4, 2, 1, 0)]
    network = PointCNN(3, 5, down, up)
    scores = network(torch.rand(2, 24, 3), torch.rand(2, 24, 3))
    assert scores.shape == (2, 24, 5)
    scores.sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    with pytest.raises(ValueError, match="Expected features exactly where"):
        network(torch.rand(2, 24, 3))


def _x_convolution(inputs: int, lifted: int, outputs: int, k: int, multiplier: int) -> int:
    """The lift of positions, the k × k matrix in three steps, and the convolution in two; norms have two a feature."""
    lift = _layers(3, lifted, lifted, bias=False)
    matrix = 3 * k * k * k + 2 * k * k + 2 * (k**3 + 2 * k * k)
    both = inputs + lifted
    return lift + matrix + both * k * multiplier + _layers(both * multiplier, outputs, bias=False)


def test_pointcnn_for_scenes_and_parts() -> None:
    features = _layers(6, 64, bias=False)
    down = (
        _x_convolution(64, 64, 256, 8, 4) + _x_convolution(256, 64, 512, 12, 2)
        + _x_convolution(512, 128, 768, 16, 2) + _x_convolution(768, 192, 1024, 16, 2)
    )  # fmt: skip
    up = (
        _x_convolution(1024, 256, 1024, 16, 1) + _x_convolution(1024, 256, 768, 16, 1)
        + _x_convolution(768, 192, 512, 12, 1) + _x_convolution(512, 128, 256, 8, 1)
    )  # fmt: skip
    fuse = sum(_layers(2 * c, c, bias=False) for c in (1024, 768, 512, 256))
    head = _layers(256, 256, 256, bias=False) + _layers(256, 13, norm=False)
    assert _count(PointCNN()) == features + down + up + fuse + head == 10_928_717
    assert _count(PointCNN(0, 50, SHAPENET_DOWN, SHAPENET_UP)) == 4_209_266


def test_farthest_points_spread() -> None:
    line = torch.arange(11.0)[None, :, None].expand(1, 11, 3)
    assert sorted(sample(line, 3)[0, :, 0].tolist()) == [0.0, 5.0, 10.0]
