"""The benchmark of the point networks: all networks on the same clouds, and a stored result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fgnn.bench import points
from fgnn.models.points.config import PointConfig


def test_networks_are_measured_on_the_same_clouds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = points.run(networks=("fgnn", "dgcnn"), clouds=2, points=40, repeats=1, out=tmp_path)
    stored = json.loads(Path(result["file"]).read_text())
    assert list(stored["networks"]) == ["fgnn", "dgcnn"]
    assert stored["networks"]["fgnn"]["parameters"] == 2_900_418
    assert all(row["step_ms"] > 0 and row["use_ms"] > 0 for row in stored["networks"].values())
    printed = capsys.readouterr().out
    assert "training, shapes/s" in printed
    assert "1.00×" in printed


def test_every_architecture_has_its_published_size() -> None:
    architectures = {config.architecture for config, _ in points.NETWORKS.values()}
    assert architectures == {"fgnn", "pointnet", "dgcnn", "pointcnn"}
    assert points.NETWORKS["fgnn"][0] == PointConfig()
    assert points.NETWORKS["dgcnn"][0].k == 20
