"""`fgnn.draw`: what is drawn, what it is saved as, and what it refuses."""

from __future__ import annotations

import re
import struct
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import fgnn
from fgnn.decoding import Code
from fgnn.drawing.sketch import BROKEN_COLOUR, CONSTRAINT_COLOUR, STATE_COLOURS, TABLE_COLOUR

SVG = "{http://www.w3.org/2000/svg}"


def ring(n: int = 6) -> fgnn.GraphicalModel:
    rng = np.random.default_rng(0)
    model = fgnn.GraphicalModel([2] * n)
    model.add_unaries(rng.normal(size=2 * n))
    model.add_tables([(i, (i + 1) % n) for i in range(n)], rng.normal(size=(n, 2, 2)))
    model.add_budget(range(n), at_most=2)
    model.add_parity((0, 2, 4))
    return model


def fills(drawing: fgnn.drawing.Drawing, tag: str) -> list[str]:
    """Colours of the circles or rectangles of the graph, without those of the legend."""
    return [e.attrib["fill"] for e in ET.fromstring(drawing.svg).findall(f"{SVG}g/{SVG}{tag}")]


def test_variables_are_circles_and_factors_squares_by_kind() -> None:
    drawing = fgnn.draw(ring())
    assert fills(drawing, "circle") == ["transparent"] * 6
    assert fills(drawing, "rect") == [TABLE_COLOUR] * 6 + [CONSTRAINT_COLOUR] * 2
    texts = [e.text for e in ET.fromstring(drawing.svg).iter(f"{SVG}text")]
    assert texts == ["≤2", "parity", *"012345", "table", "budget", "parity"]


def test_every_edge_ends_at_the_rims_of_its_nodes() -> None:
    scene = fgnn.draw(ring()).scene
    assert len(scene.lines) == 6 * 2 + 6 + 3
    for x1, y1, x2, y2 in scene.lines:
        assert min(max(abs(x1 - s.x) - s.half[0], abs(y1 - s.y) - s.half[1]) for s in scene.squares) == pytest.approx(
            0, abs=0.11
        )
        assert min(abs(np.hypot(x2 - c.x, y2 - c.y) - 14) for c in scene.circles) < 0.15


def test_an_assignment_colours_variables_and_what_it_violates() -> None:
    model = ring()
    model.add_table((0, 1), [[0.0, 0.0], [0.0, -np.inf]])
    drawing = fgnn.draw(model, [1, 1, 1, 0, 0, 0])
    assert fills(drawing, "circle") == [STATE_COLOURS[s] for s in (1, 1, 1, 0, 0, 0)]
    assert fills(drawing, "rect") == [TABLE_COLOUR] * 6 + [BROKEN_COLOUR] * 2 + [CONSTRAINT_COLOUR]
    assert "3≤2" in drawing.svg


def test_a_solution_is_drawn_with_the_model_it_solves() -> None:
    model = ring()
    solution = fgnn.solve(model)
    expected = fgnn.draw(model, solution).svg
    model.add_table((0, 3), np.zeros((2, 2)))  # the solution keeps the model as it was
    assert fgnn.draw(solution).svg == expected
    assert BROKEN_COLOUR not in expected
    batch = fgnn.solve(fgnn.ModelBatch.stack([model]))
    with pytest.raises(ValueError, match=r"draw\(model, solution\)"):
        fgnn.draw(batch[0])
    assert fgnn.draw(model, batch[0]).scene.circles[0].wedges


def test_marginals_become_wedges() -> None:
    model = ring()
    marginals = fgnn.marginals(model)
    scene = fgnn.draw(model, marginals).scene
    for circle, p in zip(scene.circles, marginals.variables, strict=True):
        assert [share for share, _ in circle.wedges] == pytest.approx([v for v in p if v > 0])


def test_groups_of_a_graph_have_their_own_colours() -> None:
    pair, triple = fgnn.FactorGroup([[0, 1], [1, 2]]), fgnn.FactorGroup([[0, 1, 2]])
    drawing = fgnn.draw(fgnn.FactorGraph(3, {"pair": pair, "all": triple}), [0, 1, 9])
    assert fills(drawing, "rect") == [TABLE_COLOUR] * 2 + [CONSTRAINT_COLOUR]
    assert ">2:9<" in drawing.svg  # a state beyond the colours is written out


def test_checks_that_a_word_violates_are_red() -> None:
    code = Code.of([[1, 1, 1, 0], [0, 1, 1, 1]])
    assert fills(fgnn.draw(code, [1, 0, 0, 0]), "rect") == [BROKEN_COLOUR, CONSTRAINT_COLOUR]


def test_a_drawing_is_saved_by_suffix(tmp_path: Path) -> None:
    drawing = fgnn.draw(ring(), title="a ring")
    assert drawing.save(tmp_path / "a.svg").read_text(encoding="utf-8") == drawing.svg
    page = drawing.save(str(tmp_path / "a.html")).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "a ring" in page
    assert "prefers-color-scheme:dark" in drawing.svg
    with pytest.raises(ValueError, match=r"\.svg.*'a\.gif'"):
        drawing.save(tmp_path / "a.gif")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.svg"]


def test_images_need_matplotlib_and_are_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    model = ring()
    drawing = fgnn.draw(model, fgnn.marginals(model), title="$x$ <b>")
    data = drawing.save(tmp_path / "a.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert width / height == pytest.approx(drawing.scene.width / drawing.scene.height, rel=0.02)
    assert drawing.save(tmp_path / "b.png").read_bytes() == data
    assert drawing.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"fgnn\[viz\]"):
        drawing.save(tmp_path / "c.png")
    assert not (tmp_path / "c.png").exists()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_model_without_factors_is_drawn(count: int) -> None:
    assert len(fills(fgnn.draw(fgnn.GraphicalModel([2] * count)), "circle")) == count


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1,000 variables and factors.*1,001"):
        fgnn.draw(fgnn.GraphicalModel([2] * 1001))
    with pytest.raises(ValueError, match=r"1,000 variables and factors.*1,002"):
        fgnn.draw(fgnn.FactorGraph(1001, {"pair": fgnn.FactorGroup([[0, 1]])}))
    with pytest.raises(ValueError, match=r"6 variables \(got 5\)"):
        fgnn.draw(ring(), [0] * 5)
    with pytest.raises(ValueError, match=r"below 2 for variable 3 \(got 2\)"):
        fgnn.draw(ring(), [0, 0, 0, 2, 0, 0])
    with pytest.raises(ValueError, match="float64"):
        fgnn.draw(ring(), [0.5] * 6)
    with pytest.raises(TypeError, match=r"to draw \(got str\)"):
        fgnn.draw("model.uai")  # type: ignore[arg-type]


def test_five_hundred_nodes_are_drawn_within_seconds_in_a_small_file() -> None:
    rng = np.random.default_rng(1)
    model = fgnn.GraphicalModel([3] * 200)
    for _ in range(300):
        model.add_table(tuple(rng.choice(200, 2, replace=False)), np.zeros((3, 3)))
    svg = fgnn.draw(model).svg
    assert len(svg) < 200_000
    assert len(re.findall("<circle", svg)) == 200
