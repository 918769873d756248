"""Diagrams of the layer, of a module and of the transformation into an MPNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.theory import draw_layer, draw_module, draw_shrinking

pytest.importorskip("matplotlib")

EXAMPLE = FactorGraph(3, {"f1": FactorGroup([[0, 1, 2]]), "f2": FactorGroup([[2]])})
MATCHED = FactorGraph(4, {"f": FactorGroup([[0, 1], [1, 2], [2, 3], [3, 0]])})


def texts(figure: Any) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text()]


def arrows(axes: Any) -> int:
    return sum(text.arrow_patch is not None for text in axes.texts if hasattr(text, "arrow_patch"))


def test_the_layer_shows_both_modules() -> None:
    figure = draw_layer(EXAMPLE)
    assert [axes.get_title()[:2] for axes in figure.axes] == ["VF", "FV"]
    assert [arrows(axes) for axes in figure.axes] == [4, 4]  # an arrow for each edge
    assert texts(figure) == ["$f_{1}$", "$f_{2}$", "$f_{3}$", "$g_{1}$", "$g_{2}$"] * 2


@pytest.mark.parametrize(("towards", "result"), [("factor", r"$\tilde g_c$"), ("variable", r"$\tilde f_i$")])
def test_a_module_shows_the_path_of_a_message(towards: Any, result: str) -> None:
    figure = draw_module(towards, edges=2)
    shown = texts(figure)
    assert sum("mathcal{M}(" in text for text in shown) == sum("mathcal{Q}(" in text for text in shown) == 2
    assert {"max", result} <= set(shown)
    assert arrows(figure.axes[0]) == 2 * 5 + 1


def test_shrinking_has_a_super_node_for_every_pair() -> None:
    figure = draw_shrinking(MATCHED)
    left, right = figure.axes
    matched = [line for line in left.lines if line.get_linewidth() > 2]
    assert len(matched) == 4
    assert len([line for line in right.lines if line.get_marker() == "None"]) == 4  # the cycle of neighbours
    assert len([t for t in right.texts if "x_" in t.get_text()]) == 4


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_same_graph_gives_the_same_file(suffix: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.{suffix}" for name in ("one", "two")]
    for file in files:
        draw_shrinking(MATCHED, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="factor or variable"):
        draw_module("node")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at least one edge \(got 0\)"):
        draw_module(edges=0)
    with pytest.raises(ValueError, match="perfect matching"):
        draw_shrinking(FactorGraph(2, {"f": FactorGroup([[0], [0]])}))
