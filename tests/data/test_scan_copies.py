"""Altered copies of labelled scans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn.data.ground import GROUND, OTHER, SAMPLES
from fgnn.data.labelled import Classes
from fgnn.data.scan_copies import altered, scan_versions
from fgnn.data.scenes import terrain_strips
from fgnn.points.cloud import Cloud, read_cloud, write_cloud
from fgnn.points.segment_pieces import Cut


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small generated scans under the names of the fifteen samples."""
    place = tmp_path_factory.mktemp("lidar")
    for seed, name in enumerate(SAMPLES):
        scan = next(terrain_strips(700, seed=seed, density=0.5))
        label = np.where(scan.fields["classification"] == 2, GROUND, OTHER).astype(np.uint8)
        write_cloud(Cloud(scan.xyz, {"classification": label}), place / f"{name}.npz")
    (place / "classes.txt").write_text("ground: 2\nother: 1\n")
    return place


def test_copies_keep_labels_and_differ(folder: Path) -> None:
    cloud = read_cloud(folder / "samp21.npz")
    tagged = Cloud(cloud.xyz, {**cloud.fields, "tag": np.arange(len(cloud))})
    copies = [altered(tagged, "classification", np.random.default_rng(s), stray=OTHER) for s in range(4)]
    for copy in copies:
        before = tagged.fields["classification"][copy.fields["tag"]]
        changed = copy.fields["classification"] != before
        assert changed.mean() < 0.02
        assert (copy.fields["classification"][changed] == OTHER).all()
    assert not np.allclose(copies[0].xyz[:5], copies[1].xyz[:5])
    again = altered(tagged, "classification", np.random.default_rng(0), stray=OTHER)
    np.testing.assert_array_equal(again.xyz, copies[0].xyz)


def test_versions_do_not_depend_on_the_number_of_processes(folder: Path) -> None:
    classes = Classes.read(folder / "classes.txt")
    files = [folder / f"{name}.npz" for name in SAMPLES[:4]]
    cut = Cut(size=30.0, points=64, scale=5.0)
    several = scan_versions(files, classes, "classification", cut, copies=3, stray=OTHER)
    alone = [scan_versions([f], classes, "classification", cut, copies=3, stray=OTHER)[0] for f in files]
    for a, b in zip(several, alone, strict=True):
        assert a.features.equal(b.features)
        assert a.label.equal(b.label)
