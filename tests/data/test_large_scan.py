"""Generated scans of any size are one continuous land."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn.data.scenes import terrain_strips, write_terrain
from fgnn.points.cloud import read_cloud


def test_strips_form_one_land_with_every_class() -> None:
    strips = list(terrain_strips(20_000, seed=4, strip=6_000))
    assert [len(s) for s in strips] == [6_000, 6_000, 6_000, 2_000]
    xyz = np.concatenate([s.xyz for s in strips])
    kind = np.concatenate([s.fields["classification"] for s in strips])
    side = np.sqrt(20_000 / 4)
    np.testing.assert_allclose(np.ptp(xyz[:, :2], axis=0), side, rtol=0.02)
    assert set(np.unique(kind)) == {2, 5, 6}
    # the ground is continuous across the border of two strips
    ground = kind == 2
    border = strips[0].xyz[:, 1].max()
    below = ground & (np.abs(xyz[:, 1] - border + 0.5) < 0.5)
    above = ground & (np.abs(xyz[:, 1] - border - 0.5) < 0.5)
    for x in range(0, int(side) - 4, 4):
        column = np.abs(xyz[:, 0] - 512_000 - x - 2) < 2
        a, b = xyz[below & column, 2], xyz[above & column, 2]
        if len(a) > 2 and len(b) > 2:
            assert abs(np.median(a) - np.median(b)) < 0.6


def test_the_seed_determines_the_scan_and_its_file(tmp_path: Path) -> None:
    a, b, c = (next(iter(terrain_strips(500, seed=s))) for s in (1, 1, 2))
    np.testing.assert_array_equal(a.xyz, b.xyz)
    assert not np.array_equal(a.xyz, c.xyz)
    write_terrain(tmp_path / "a.laz", 500, seed=1)
    np.testing.assert_allclose(read_cloud(tmp_path / "a.laz").xyz, a.xyz, atol=1e-3)
    with pytest.raises(ValueError, match="Expected points"):
        next(iter(terrain_strips(0)))
