"""Segmenters from weights: batch size by device, halved when memory runs out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fgnn.models.points.network import PointNetwork
from fgnn.models.points.segmenter import load_segmenter, usual_batch


def test_a_gpu_gets_larger_batches_than_a_cpu() -> None:
    assert usual_batch("cpu") == load_segmenter("lidar-aerial").batch == 8
    assert usual_batch("cuda:1") == 64
    assert load_segmenter("lidar-aerial", batch=3).batch == 3


def test_a_batch_is_halved_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    segmenter = load_segmenter("lidar-aerial")
    features = np.random.default_rng(0).normal(size=(5, 64, segmenter.cut.columns)).astype(np.float32)
    expected = segmenter.predict(features)
    forward, sizes = PointNetwork.forward, []

    def small(self: PointNetwork, x: torch.Tensor, category: torch.Tensor | None = None) -> object:
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(x))
        return forward(self, x, category)

    monkeypatch.setattr(PointNetwork, "forward", small)
    np.testing.assert_allclose(segmenter.predict(features), expected, atol=1e-5)
    assert sum(sizes) == 5

    def none(self: PointNetwork, x: torch.Tensor, category: torch.Tensor | None = None) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PointNetwork, "forward", none)
    with pytest.raises(torch.OutOfMemoryError):
        segmenter.predict(features)
