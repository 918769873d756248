"""Point networks that come with the package do what their cards say."""

from __future__ import annotations

import numpy as np
import pytest

import fgnn
from fgnn.data.aerial import CODES, FOLDS
from fgnn.data.scenes import make_shapes, terrain_strips
from fgnn.data.shapenet import CATEGORIES, PARTS
from fgnn.models.points.segmenter import load_segmenter
from fgnn.points.cloud import Cloud
from fgnn.weights import load_weights, weight_names

GROUND = [n for n in weight_names() if "ground" in load_weights(n).card.get("classes", ())]
SHAPES = [n for n in weight_names() if load_weights(n).card.get("inputs") == "shape: unit sphere"]


@pytest.mark.parametrize("name", GROUND)
def test_ground_weights_filter_land_they_never_saw(name: str) -> None:
    scan = next(terrain_strips(9_000, seed=11, density=1.0))
    truth = scan.fields["classification"] == 2
    found = fgnn.segment(Cloud(scan.xyz, {}), model=name)
    ground = found.label == list(load_weights(name).card["classes"]).index("ground")
    assert (ground == truth).mean() > 0.9


def test_aerial_weights_say_what_they_write_and_how_they_were_scored() -> None:
    card = load_weights("lidar-aerial").card
    segmenter = load_segmenter("lidar-aerial")
    assert dict(zip(segmenter.classes, segmenter.codes, strict=True)) == dict(CODES)
    scored = card["cross_validation"]["summary"]
    assert scored["lidar-aerial"]["scans"] == scored["smrf"]["scans"] == sum(map(len, FOLDS))
    assert scored["lidar-aerial"]["mean"] < scored["smrf"]["mean"]  # why it is the default
    assert scored["lidar-aerial"]["median"] < scored["smrf"]["median"]


def test_aerial_weights_do_not_need_echoes_or_density() -> None:
    scan = next(terrain_strips(40_000, seed=12, density=20.0))
    truth = scan.fields["classification"] == 2
    for share in (1, 8):
        found = fgnn.segment(Cloud(scan.xyz, {})[::share])
        assert ((found.label == 0) == truth[::share]).mean() > 0.9


@pytest.mark.parametrize("name", SHAPES)
def test_shape_weights_find_the_parts_of_a_made_table(name: str) -> None:
    shapes = make_shapes(12, points=1024, seed=3)
    table = next(s for s in range(len(shapes)) if CATEGORIES[shapes[s][2]] == "Table")
    xyz, part, category = shapes[table]
    found = fgnn.segment(Cloud(xyz.astype(np.float64), {}), model=name, category="Table")
    assert set(np.unique(found.label)) <= set(PARTS[category])
    assert (found.label == part).mean() > 0.7
