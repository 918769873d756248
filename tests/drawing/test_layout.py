"""Layouts: grids as grids, chains in a row, and never two nodes on top of each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from fgnn.drawing.layout import GAP, ROOM, lay_out
from fgnn.drawing.stress import majorise


def grid_pairs(rows: int, columns: int) -> list[tuple[int, int]]:
    number = np.arange(rows * columns).reshape(rows, columns)
    across = zip(number[:, :-1].ravel(), number[:, 1:].ravel(), strict=True)
    down = zip(number[:-1].ravel(), number[1:].ravel(), strict=True)
    return [(int(a), int(b)) for a, b in [*across, *down]]


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (4, 5), (5, 4), (2, 9), (14, 14)])
def test_a_grid_is_drawn_as_a_grid_in_any_numbering(rows: int, columns: int) -> None:
    order = np.random.default_rng(rows).permutation(rows * columns)
    for names in (np.arange(rows * columns), order):
        pairs = [(int(names[a]), int(names[b])) for a, b in grid_pairs(rows, columns)]
        variables, factors = lay_out(rows * columns, pairs)
        assert len(np.unique(variables, axis=0)) == rows * columns
        for (a, b), centre in zip(pairs, factors, strict=True):
            assert np.abs(variables[a] - variables[b]).sum() == pytest.approx(GAP)
            assert centre == pytest.approx((variables[a] + variables[b]) / 2)


def test_a_grid_in_reading_order_stands_upright() -> None:
    variables, _ = lay_out(20, grid_pairs(4, 5))
    assert variables == pytest.approx(GAP * np.stack(np.divmod(np.arange(20), 5)[::-1], axis=1))


def test_a_chain_lies_in_a_row_with_long_factors_above_it() -> None:
    pairs = [(i, i + 1) for i in range(9)]
    windows = [tuple(range(i, i + 4)) for i in range(7)]
    variables, factors = lay_out(10, [*pairs, *windows])
    assert (variables[:, 1] == 0).all()
    assert (np.diff(variables[:, 0]) == GAP).all()
    assert (factors[:9, 1] == 0).all()
    assert (factors[9:, 1] < -ROOM).all()  # y points down


def test_a_ring_is_drawn_round() -> None:
    variables, _ = lay_out(12, [(i, (i + 1) % 12) for i in range(12)])
    radius = np.hypot(*(variables - variables.mean(0)).T)
    assert radius.min() > 0.85 * radius.max()


def test_stress_restores_distances_that_fit_the_plane() -> None:
    points = np.random.default_rng(0).normal(size=(12, 2))
    distance = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    assert pdist(majorise(distance)) == pytest.approx(pdist(points), rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_two_nodes_overlap(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14))
    scope = st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True)
    scopes = data.draw(st.lists(scope, max_size=16))
    variables, factors = lay_out(count, scopes)
    points = np.concatenate([variables, factors])
    assert points.shape == (count + len(scopes), 2)
    assert np.isfinite(points).all()
    assert len(points) == 1 or pdist(points).min() >= 0.999 * ROOM
    again = np.concatenate(lay_out(count, scopes))
    assert (points == again).all()
