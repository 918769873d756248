"""The viewer of labelled scans in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn.data.s3dis import CLASSES
from fgnn.data.scenes import make_room
from fgnn.points.cloud import Cloud
from fgnn.report.viewer import write_viewer


@pytest.fixture
def viewer(page: Any, tmp_path: Path) -> Any:
    room = make_room(seed=1, density=300)
    rgb = (room.rgb * 255).astype(np.uint8)
    cloud = Cloud(room.xyz, {"red": rgb[:, 0], "green": rgb[:, 1], "blue": rgb[:, 2]})
    confidence = np.linspace(0.2, 1, len(cloud))
    write_viewer(cloud, room.label, tmp_path / "v.html", CLASSES, confidence, title="A room </script><b>")
    page.goto((tmp_path / "v.html").as_uri())
    page.wait_for_selector("#view[data-frames]")
    page.expected = np.bincount(room.label, minlength=13)
    return page


def pixels(page: Any, tmp_path: Path) -> np.ndarray:
    import matplotlib.image

    shot = tmp_path / "shot.png"
    page.wait_for_timeout(150)
    page.screenshot(path=shot, clip={"x": 300, "y": 100, "width": 900, "height": 600})
    return np.asarray(matplotlib.image.imread(shot)[..., :3])


def test_it_draws_the_cloud_with_counts(viewer: Any, tmp_path: Path) -> None:
    assert viewer.inner_text("#name") == "A room </script><b>"
    assert f"{viewer.expected[2]:,}" in viewer.inner_text("#legend")
    picture = pixels(viewer, tmp_path)
    assert (picture.sum(2) > 0.6).mean() > 0.05  # points, not only background


def test_every_colouring_looks_different(viewer: Any, tmp_path: Path) -> None:
    images = {}
    for mode in ("class", "height", "colour", "confidence"):
        viewer.select_option("#mode", mode)
        images[mode] = pixels(viewer, tmp_path)
    for a, b in (("class", "height"), ("height", "colour"), ("colour", "confidence")):
        assert np.abs(images[a] - images[b]).mean() > 0.005


def test_a_class_can_be_hidden_and_the_view_turned_by_keyboard(viewer: Any, tmp_path: Path) -> None:
    before = pixels(viewer, tmp_path)
    wall = viewer.locator("#legend button", has_text="wall")
    wall.focus()
    viewer.keyboard.press("Enter")
    assert wall.get_attribute("aria-pressed") == "false"
    hidden = pixels(viewer, tmp_path)
    assert (hidden.sum(2) > 0.6).mean() < (before.sum(2) > 0.6).mean()
    viewer.focus("#view")
    viewer.keyboard.press("ArrowLeft")
    turned = pixels(viewer, tmp_path)
    assert np.abs(turned - hidden).mean() > 0.001
    viewer.keyboard.press("r")


def test_a_sample_shows_the_counts_of_the_whole(page: Any, tmp_path: Path) -> None:
    cloud = Cloud(np.random.default_rng(0).random((50, 3)))
    totals = {"a": 4_000_000, "b": 1_000_000}
    write_viewer(cloud, np.arange(50) % 2, tmp_path / "v.html", ["a", "b"], totals=totals)
    page.goto((tmp_path / "v.html").as_uri())
    page.wait_for_selector("#view[data-frames]")
    assert "4,000,000" in page.inner_text("#legend")
    assert "50 of 5,000,000 points" in page.inner_text("#foot")


def test_an_empty_cloud_has_a_page(page: Any, tmp_path: Path) -> None:
    write_viewer(Cloud(np.zeros((0, 3))), np.zeros(0, np.uint8), tmp_path / "v.html", ["a"])
    page.goto((tmp_path / "v.html").as_uri())
    page.wait_for_selector("#view[data-frames]")
    assert "0 points" in page.inner_text("#foot")
