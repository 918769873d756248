"""Many searches at once are compared with one at a time at equal quality."""

from __future__ import annotations

import torch

from tools import batched_search


def test_all_grids_reach_what_one_grid_reached() -> None:
    alone = batched_search.search_one_by_one(4, grids=2, seconds=1.0)
    assert alone["seconds"] == [1.0]
    together = batched_search.search_all(4, 3, 1.0, torch.device("cpu"), alone)
    row = together["rows"][0]
    assert 0 < row["reached_s"] < 1.5  # grids this small are solved
    assert row["ratio"] == 3 * 1.0 / row["reached_s"]


def test_quality_that_is_not_reached_has_no_ratio() -> None:
    together = batched_search.search_all(3, 2, 0.3, torch.device("cpu"), {"grids": 1, "seconds": [1.0], "mean": [1e9]})
    assert together["rows"][0]["ratio"] is None
