"""The pyramid labels points by their surroundings: neither position nor padding far away matters."""

from __future__ import annotations

import pytest
import torch

from fgnn.models import PointConfig, PointNetwork
from fgnn.models.points.pyramid import PyramidFGNN, nearest_points


def network() -> PyramidFGNN:
    torch.manual_seed(0)
    return PyramidFGNN(7, 3, widths=(8, 16, 16), k=6, bases=2).eval()


def test_scores_depend_on_relative_positions_only() -> None:
    net = network()
    x = torch.rand(2, 256, 7)
    moved = x.clone()
    moved[..., :3] += torch.tensor([4.0, -2.0, 8.0])
    assert net(x).shape == (2, 256, 3)
    torch.testing.assert_close(net(x), net(moved), rtol=1e-3, atol=1e-3)


def test_a_copy_far_away_changes_nothing() -> None:
    """As padding does: interleaved, so that every level has its share of both copies."""
    net = network()
    x = torch.rand(1, 256, 7)
    far = x.clone()
    far[..., 0] += 64.0
    both = torch.stack([x, far], dim=2).flatten(1, 2)
    torch.testing.assert_close(net(both)[:, ::2], net(x), rtol=1e-3, atol=1e-3)


def test_every_parameter_gets_a_gradient() -> None:
    net = network().train()
    net(torch.rand(2, 256, 7)).square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


def test_nearest_points_agree_with_all_distances() -> None:
    points, centres = torch.rand(2, 50, 3), torch.rand(2, 9, 3)
    expected = torch.cdist(centres, points).topk(4, largest=False).indices
    assert torch.equal(nearest_points(points, centres, 4), expected)


def test_it_is_built_from_a_configuration_for_scans_only() -> None:
    config = PointConfig("pyramid", k=6, bases=2, widths=(8, 16))
    scores, loss = PointNetwork(config, 7, 3)(torch.rand(1, 128, 7))
    assert scores.shape == (1, 128, 3)
    assert float(loss) == 0
    with pytest.raises(ValueError, match="scans"):
        PointNetwork(config, 7, 3, categories=2)
    with pytest.raises(ValueError, match="two levels"):
        PyramidFGNN(7, 3, widths=(8,))
