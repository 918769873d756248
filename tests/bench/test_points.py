"""The benchmark of the point networks: every network on the same clouds, and a result that can be kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fgnn.bench import points
from fgnn.models.points.config import PointConfig


def test_networks_are_measured_on_the_same_clouds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = points.run(networks=("fgnn", "dgcnn"), clouds=2, points=40, repeats=1, out=tmp_path)
    kept = json.loads(Path(result["file"]).read_text())
    assert list(kept["networks"]) == ["fgnn", "dgcnn"]
    assert kept["networks"]["fgnn"]["parameters"] == 2_900_418
    assert all(row["step_ms"] > 0 and row["use_ms"] > 0 for row in kept["networks"].values())
    printed = capsys.readouterr().out
    assert "training, shapes/s" in printed
    assert "1.00×" in printed


def test_every_architecture_is_there_in_its_published_size() -> None:
    found = {config.architecture for config, _ in points.NETWORKS.values()}
    assert found == {"fgnn", "pointnet", "dgcnn", "pointcnn"}
    assert points.NETWORKS["fgnn"][0] == PointConfig()
    assert points.NETWORKS["dgcnn"][0].k == 20
