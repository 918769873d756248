"""Classical ground filters: on scenes with known ground, against plain loops, and against the original CSF program."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import generate_binary_structure, grey_dilation, grey_erosion, iterate_structure

from fgnn.data.ground import GROUND, read_samples
from fgnn.points import ground_score, read_cloud
from fgnn.points.ground import GROUND_FILTERS, csf
from fgnn.points.ground.raster import dilated, eroded, fill
from tests.points.test_heights import land


@pytest.mark.parametrize(("method", "slope"), [("smrf", 0.0), ("smrf", 0.3), ("pmf", 0.0), ("csf", 0.0)])
def test_filters_find_the_house(method: str, slope: float) -> None:
    """Only SMRF is made for slopes."""
    xyz, ground = land(slope)
    score = ground_score(ground, GROUND_FILTERS[method](xyz.astype(np.float64)))
    assert score.total < (0.03 if method == "smrf" else 0.06)


@pytest.mark.parametrize("method", list(GROUND_FILTERS))
@pytest.mark.parametrize("points", [0, 1, 2, 5])
def test_few_or_coinciding_points_give_a_mask(method: str, points: int) -> None:
    for xyz in (land(points=6000)[0][:points].astype(np.float64), np.ones((points, 3))):
        mask = GROUND_FILTERS[method](xyz)
        assert mask.shape == (points,)
        assert mask.dtype == np.bool_


@pytest.mark.parametrize("method", list(GROUND_FILTERS))
def test_filters_do_not_depend_on_the_origin(method: str) -> None:
    xyz = np.round(land(0.2)[0].astype(np.float64), 2)
    moved = xyz + np.array([650_000.0, 6_860_000.0, 100.0])
    assert (GROUND_FILTERS[method](xyz) == GROUND_FILTERS[method](moved)).mean() > 0.99  # up to rounding at cell edges


@pytest.mark.parametrize("radius", [1, 2, 7])
def test_erosion_and_dilation_equal_scipy(radius: int) -> None:
    surface = np.random.default_rng(radius).normal(size=(23, 17))
    diamond = iterate_structure(generate_binary_structure(2, 1), radius)
    np.testing.assert_array_equal(
        eroded(surface, radius), grey_erosion(surface, footprint=diamond, mode="constant", cval=np.inf)
    )
    np.testing.assert_array_equal(
        dilated(surface, radius), grey_dilation(surface, footprint=diamond, mode="constant", cval=-np.inf)
    )


def test_holes_take_the_mean_of_the_nearest_cells() -> None:
    surface = np.arange(25.0).reshape(5, 5)
    hole = np.zeros((5, 5), bool)
    hole[2, 2] = True
    filled = fill(np.where(hole, np.inf, surface), hole)
    assert filled[2, 2] == 12.0  # of the eight around it
    np.testing.assert_array_equal(filled[~hole], surface[~hole])


def test_a_stray_point_far_away_is_refused_in_one_line() -> None:
    xyz = np.concatenate([land()[0], [[1e7, 1e7, 0.0]]]).astype(np.float64)
    for method in GROUND_FILTERS.values():
        with pytest.raises(ValueError, match="at most"):
            method(xyz)


@pytest.mark.data
@pytest.mark.parametrize("name", ["ahn_amsterdam", "77055_627755_town"])
def test_the_cloth_agrees_with_the_original_program(name: str, data_dir: Path) -> None:
    """The package cloth-simulation-filter, where it is installed; it runs particle by particle, ours all at once."""
    original = importlib.import_module("CSF") if importlib.util.find_spec("CSF") else pytest.skip("no CSF package")
    xyz = read_cloud(data_dir / "scans" / "aerial" / f"{name}.laz").xyz
    program = original.CSF()
    program.params.bSloopSmooth, program.params.cloth_resolution, program.params.rigidness = True, 1.0, 3
    program.setPointCloud(xyz)
    ground, other = original.VecInt(), original.VecInt()
    program.do_filtering(ground, other, False)
    mask = np.zeros(len(xyz), bool)
    mask[np.array(ground)] = True
    assert (mask == csf(xyz)).mean() > 0.99


@pytest.mark.data
def test_smrf_on_the_isprs_samples(data_dir: Path) -> None:
    """A published filter with one set of parameters: 4.8 % for PDAL's implementation on the same points."""
    samples = read_samples(data_dir / "scans" / "isprs_filtertest_ground.npz")
    totals = [
        ground_score(cloud.fields["classification"] == GROUND, GROUND_FILTERS["smrf"](cloud.xyz)).total
        for cloud in samples.values()
    ]
    assert np.mean(totals) < 0.055
