"""`fgnn reproduce ground`: classical filters measured, networks of the folds from the card."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fgnn.data.ground import GROUND, OTHER, SAMPLES
from fgnn.data.scenes import terrain_strips
from fgnn.errors import InputError
from fgnn.points import Cloud, ground_score, read_cloud, write_cloud
from fgnn.points.ground import smrf
from fgnn.reproduce import ground as module
from fgnn.reproduce.experiment import Setting
from fgnn.weights import load_weights


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small generated scans under the names of the fifteen samples, and one filter."""
    monkeypatch.setattr(module, "GROUND_FILTERS", {"smrf": smrf})
    for seed, name in enumerate(SAMPLES):
        scan = next(terrain_strips(300, seed=seed, density=0.5))
        label = np.where(scan.fields["classification"] == 2, GROUND, OTHER).astype(np.uint8)
        write_cloud(Cloud(scan.xyz, {"classification": label}), tmp_path / f"{name}.npz")
    return tmp_path


def test_filters_are_measured_and_networks_recorded(folder: Path) -> None:
    result = module.reproduce_ground(Setting(data=str(folder)), folder, lambda text: None)
    cells = json.loads((folder / "ground.json").read_text())["cells"]
    found = {(c["filter"], c["sample"]): c["total"] for c in cells}
    recorded = load_weights("lidar-aerial").card["cross_validation"]["total_error"]
    cloud = read_cloud(folder / "samp22.npz")
    assert found["fgnn", "samp22"] == recorded["samp22"]["lidar-aerial"]
    assert found["smrf", "samp22"] == ground_score(cloud.fields["classification"] == GROUND, smrf(cloud.xyz)).total
    assert {sample for _, sample in found} == set(SAMPLES)
    assert all(name in result.tables[1].text() for name, *_ in module.PUBLISHED)


def test_missing_samples_and_weights_without_errors_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected --data"):
        module.reproduce_ground(Setting(), tmp_path, lambda text: None)
    (folder / "samp11.npz").unlink()
    with pytest.raises(InputError, match=r"samp11\.npz"):
        module.reproduce_ground(Setting(data=str(folder)), tmp_path, lambda text: None)
    with pytest.raises(InputError, match="ISPRS"):
        module.reproduce_ground(Setting(data=str(folder), run="shapes-hierarchical"), tmp_path, lambda text: None)
