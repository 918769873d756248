"""Edge types given as a tensor are read at every call: writes through NumPy or ``.data`` count, in every mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fgnn import FactorGraph, FactorGroup
from fgnn.nn import FGNNLayer

GRAPH = FactorGraph(4, {"pair": FactorGroup(torch.tensor([[0, 1], [1, 2], [2, 3]]))})


def _by_numpy(types: Tensor) -> None:
    types.numpy()[:] = [[1, 0], [0, 1], [1, 1]]


def _by_data(types: Tensor) -> None:
    types.data.copy_(torch.tensor([[1, 0], [0, 1], [1, 1]]))


@pytest.mark.parametrize("write", [_by_numpy, _by_data])
@pytest.mark.parametrize("one_hot", [False, True])
def test_types_written_without_a_new_version_are_seen(write: Callable[[Tensor], None], one_hot: bool) -> None:
    torch.manual_seed(0)
    layer = FGNNLayer(2, {"pair": 4}, {"pair": 2}, out=5, q="table")
    f, g = torch.randn(4, 2), {"pair": torch.randn(3, 4)}
    types = torch.tensor([[0, 1], [1, 0], [0, 0]])

    def call(t: Tensor) -> Tensor:
        edges = torch.nn.functional.one_hot(t, 2).float() if one_hot else t
        out: Tensor = layer(GRAPH, f, g, {"pair": edges})[0]
        return out

    before = call(types)
    write(types)
    after = call(types)
    assert torch.equal(after, call(types.clone()))  # not what was kept for the old types
    assert not torch.equal(after, before)


def test_types_made_in_inference_mode_serve_there_and_afterwards() -> None:
    torch.manual_seed(0)
    layer = FGNNLayer(2, {"pair": 4}, {"pair": 2}, out=5, q="table")
    f, g = torch.randn(4, 2), {"pair": torch.randn(3, 4)}
    with torch.inference_mode():
        types = torch.tensor([[0, 1], [1, 0], [0, 0]])
        inside = layer(GRAPH, f, g, {"pair": types})[0]
    outside = layer(GRAPH, f, g, {"pair": types.clone()})[0]
    assert torch.equal(inside, outside.detach())
    outside.sum().backward()
