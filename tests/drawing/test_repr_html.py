"""What notebooks show of models, solutions, graphs, networks and clouds: small, and names are text."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fgnn
from fgnn.data import make_terrain
from fgnn.drawing.png import encode_png
from fgnn.pgm.factors import Parity
from fgnn.points.cloud import Cloud
from tests.drawing.test_draw import ring
from tests.security.test_pages import EVIL, read

SHOWN: dict[str, Callable[[], Any]] = {
    "model": ring,
    "graph": lambda: fgnn.FactorGraph(3, {"pair": fgnn.FactorGroup([[0, 1], [1, 2]])}),
    "solution": lambda: fgnn.solve(ring()),
    "solutions": lambda: fgnn.solve(fgnn.ModelBatch.stack([ring()] * 3)),
    "marginals": lambda: fgnn.marginals(ring()),
    "network": lambda: fgnn.nn.build(
        "FGNN(8) - Res[FC(8)] - FGNN(2)", variable_in=2, factor_in={"pair": 4}, edge_in={"pair": 2}
    ),
    "layer": lambda: fgnn.nn.FGNNLayer(2, {"pair": 4}, {"pair": 2}, 8),
    "cloud": lambda: make_terrain(points=500, seed=0),
    "drawing": lambda: fgnn.draw(ring()),
}


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_well_formed_small_and_without_colours_of_its_own_page(name: str) -> None:
    text = SHOWN[name]()._repr_html_()
    tags = read(text)
    assert len(text) < 20_000
    assert not {"script", "style", "link", "iframe"} & set(tags.tags)
    assert not any(attribute.startswith("on") for attribute in tags.attributes)
    for tag in ("div", "table", "tr", "svg", "g", "text"):
        assert text.count(f"<{tag}>") + text.count(f"<{tag} ") == text.count(f"</{tag}>")
    # the page decides on background and text, so that dark pages work
    assert not re.search(r"(?<![-\w])(background|color):(?!none|inherit|#\w{6}'>■)", text)


def model_with(name: str) -> fgnn.GraphicalModel:
    kind = dataclass(frozen=True)(type("Odd", (Parity,), {"name": name, "__annotations__": {"name": ClassVar[str]}}))
    model = fgnn.GraphicalModel([2, 2])
    model.add_factors(kind(), [[0, 1]], value=[0])
    return model


def named(name: str) -> dict[str, Any]:
    group = fgnn.FactorGroup([[0, 1]])
    return {
        "group": fgnn.FactorGraph(2, {name: group}),
        "kind": model_with(name),
        "field": Cloud(np.random.default_rng(0).random((5, 3)), {name: np.arange(5)}),
        "title": fgnn.draw(fgnn.GraphicalModel([2]), title=name),
    }


@pytest.mark.parametrize("name", [*EVIL, "\x00\x1b[31m", "\ud800"])
def test_names_are_shown_as_text(name: str) -> None:
    plain, evil = named("plain"), named(name)
    for place in plain:
        expected, got = read(plain[place]._repr_html_()), read(evil[place]._repr_html_())
        assert got.tags == expected.tags, place
        assert got.attributes == expected.attributes, place
        assert "\x00" not in evil[place]._repr_html_()
        evil[place]._repr_html_().encode()


def test_a_large_model_is_described_but_not_drawn() -> None:
    model = fgnn.GraphicalModel([2] * 5000)
    text = model._repr_html_()
    assert "5,000" in text
    assert "<svg" not in text
    assert "<svg" not in fgnn.solve(model)._repr_html_()


def test_a_solution_shows_status_score_and_drawing() -> None:
    solution = fgnn.solve(ring())
    text = solution._repr_html_()
    assert "Solution: optimal" in text
    assert f"{solution.score:.6g}" in text
    assert "state 1" in text


def test_a_network_shows_the_parameters_of_every_layer() -> None:
    net = SHOWN["network"]()
    assert f"{net.num_parameters:,} parameters" in net._repr_html_()
    counts = [sum(p.numel() for p in layer.parameters()) for layer in net.layers]
    assert all(f">{count:,}<" in net._repr_html_() for count in counts)
    deep = fgnn.nn.ResidualNetwork(2, {"pair": 4}, {"pair": 2}, 2, width=8, layers=5)
    each = sum(p.numel() for p in deep.layers[0].parameters())
    assert "0 to 4</td>" in deep._repr_html_().replace(" " * 2, "")
    assert f"5 × {each:,}" in deep._repr_html_()


def test_a_cloud_shows_its_classes_and_the_highest_points_from_above() -> None:
    pillow = pytest.importorskip("PIL.Image")
    xyz = np.array([[0.0, 0, 0], [0, 0, 5], [10, 0, 0], [0, 4, 0], [np.nan, 0, 0]])
    cloud = Cloud(xyz, {"classification": np.array([2, 6, 2, 5, 2], np.uint8)})
    text = cloud._repr_html_()
    assert "ground 3, high vegetation 1, building 1" in text
    assert "without coordinates" in text
    (data,) = re.findall(r"base64,([^']+)'", text)
    image = np.asarray(pillow.open(io.BytesIO(base64.b64decode(data))))
    assert image.shape[0] < image.shape[1]
    assert "ground</div>" not in text
    assert "■</span> building" in text
    assert (image[..., 3] > 0).sum() == 3
    low_left, low_right, top_left = image[-1, 0], image[-1, -1], image[0, 0]
    assert len({tuple(low_left), tuple(low_right), tuple(top_left)}) == 3  # the building hides the ground below it


def test_a_png_is_what_other_programs_read() -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 4)).astype(np.uint8)
    assert (np.asarray(pillow.open(io.BytesIO(encode_png(pixels)))) == pixels).all()


def test_clouds_without_points_or_classes_are_shown() -> None:
    assert "points" in Cloud(np.zeros((0, 3)))._repr_html_()
    assert "coloured by height" in Cloud(torch.rand(20, 3).double().numpy())._repr_html_()


def test_marginals_show_log_z_and_the_first_variables() -> None:
    model = fgnn.GraphicalModel([2, 3] * 10)
    model.add_unary(1, [0.0, 0.0, np.log(2.0)])
    text = fgnn.marginals(model)._repr_html_()
    assert "exact" in text
    assert f"{10 * np.log(2) + 9 * np.log(3) + np.log(4):.8g}" in text
    assert "0.2500" in text
    assert "and 8 more variables" in text
