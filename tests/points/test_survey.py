"""Labels do not depend on how a survey is cut into files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fgnn.data.scenes import make_terrain
from fgnn.errors import InputError
from fgnn.points import Cloud, Segmenter, read_cloud, segment_cloud, segment_file, write_cloud
from fgnn.points.ground import GROUND_FILTERS
from fgnn.points.segment import GroundRule
from fgnn.points.survey import label_survey


def by_features(features: np.ndarray) -> np.ndarray:
    """Probabilities that depend on every feature of a point."""
    share = 1 / (1 + np.exp(-(features[..., 2:].sum(-1) - 4.0)))
    return np.stack([1 - share, share], axis=-1).astype(np.float32)


def rule(thin: float) -> Segmenter:
    return Segmenter(
        by_features, ("ground", "other"), size=16.0, points=256, scale=5.0, heights=(3.0, 6.0), slopes=(0.2,),
        thin=thin, shapes=(6,) if thin else (), codes=(2, 1),
    )  # fmt: skip


def label(segmenter: Segmenter | GroundRule, scan: Path, around: Sequence[Path], out: Path) -> dict[str, int]:
    return segment_file(scan, out, segmenter, around=around)[0]


def survey(folder: Path, cuts: Sequence[float]) -> Cloud:
    """A terrain cut into files along x, at millimetre coordinates far from the origin; returns it whole."""
    cloud = make_terrain(6000, seed=4)
    xyz = np.round(cloud.xyz + np.array([650_123.4, 6_860_321.9, 57.0]), 3)
    cloud = Cloud(xyz, {"number": np.arange(len(xyz), dtype=np.int32)})
    folder.mkdir()
    edges = [-np.inf, *(xyz[:, 0].min() + np.array(cuts)), np.inf]
    for n, (a, b) in enumerate(pairwise(edges)):
        write_cloud(cloud[(xyz[:, 0] >= a) & (xyz[:, 0] < b)], folder / f"tile{n}.npz")
    return cloud


@pytest.mark.parametrize("segmenter", [rule(0.5), GroundRule(GROUND_FILTERS["smrf"], size=32.0)])
@pytest.mark.parametrize("cuts", [(11.0,), (7.3, 23.0)])
def test_labels_do_not_depend_on_the_tiling(
    tmp_path: Path, segmenter: Segmenter | GroundRule, cuts: Sequence[float]
) -> None:
    cloud = survey(tmp_path / "tiles", cuts)
    (tmp_path / "out").mkdir()
    expected = segment_cloud(cloud, segmenter)
    results = list(label_survey(tmp_path / "tiles", tmp_path / "out", partial(label, segmenter)))
    assert len(results) == len(cuts) + 1
    counts = {name: sum((r.counts or {})[name] for r in results) for name in segmenter.classes}
    assert counts == {name: expected.counts[name] for name in segmenter.classes}
    for result in results:
        part = read_cloud(result.out)
        number = part.fields["number"]
        np.testing.assert_array_equal(part.fields["label"], expected.label[number])
        np.testing.assert_allclose(part.fields["confidence"], expected.confidence[number], rtol=1e-5)


def test_the_order_of_points_in_the_file_does_not_matter_to_a_thinned_scan() -> None:
    cloud = make_terrain(4000, seed=5)
    order = np.random.default_rng(0).permutation(len(cloud))
    plain, shuffled = segment_cloud(cloud, rule(0.5)), segment_cloud(cloud[order], rule(0.5))
    np.testing.assert_array_equal(plain.label[order], shuffled.label)


def test_a_stopped_run_continues(tmp_path: Path) -> None:
    survey(tmp_path / "tiles", (11.0,))
    (tmp_path / "out").mkdir()
    first = label_survey(tmp_path / "tiles", tmp_path / "out", partial(label, rule(0.5)))
    assert next(first).counts is not None
    first.close()
    again = {
        r.scan.name: r.counts for r in label_survey(tmp_path / "tiles", tmp_path / "out", partial(label, rule(0.5)))
    }
    assert again["tile0.npz"] is None
    assert again["tile1.npz"] is not None


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected scans"):
        list(label_survey(tmp_path, tmp_path / "out", partial(label, rule(0.5))))
