"""Pictures of the messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel
from fgnn.theory import MaxProductNetwork, max_product_network
from fgnn.theory.picture import draw_messages

pytest.importorskip("matplotlib")


@pytest.fixture
def net() -> MaxProductNetwork:
    model = GraphicalModel([2, 3, 2])
    model.add_unary(0, [0.0, -np.inf])
    model.add_table((0, 1), np.arange(6.0).reshape(2, 3))
    return max_product_network(model, iterations=3)


def test_a_panel_for_each_iteration_and_a_bar_for_each_entry(net: MaxProductNetwork) -> None:
    figure = draw_messages(net)
    assert [axes.get_title() for axes in figure.axes] == ["iteration 1", "iteration 2", "iteration 3"]
    bars = [p for p in figure.axes[0].patches if p.get_facecolor()[:3] != (1, 1, 1)]
    # messages of 2, 3 and, from the constant factor, 2 entries; beliefs of 2, 3 and 2, one of them forbidden
    assert len(bars) == (2 + 3 + 2) + (2 + 3 + 2) - 1
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == 1


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_network_gives_the_same_file(net: MaxProductNetwork, suffix: str, tmp_path: Path) -> None:
    one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    draw_messages(net, [1], one)
    draw_messages(net, [1], two)
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_size > 1000


def test_iterations_that_were_not_run_are_refused(net: MaxProductNetwork) -> None:
    with pytest.raises(ValueError, match=r"between 1 and 3 \(got \[4\]\)"):
        draw_messages(net, [4])
