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


@pytest.fixture
def scan(page: Any, tmp_path: Path) -> Any:
    """A long airborne strip with returns, intensity and a classification that is wrong in every fourth point."""
    rng = np.random.default_rng(0)
    count = 20_000
    xyz = rng.uniform(0, 1, (count, 3)) * (400, 30, 8) + (600_000, 5_000_000, 100)
    label = np.arange(count) % 2
    fields = {
        "intensity": rng.integers(0, 1000, count).astype(np.uint16),
        "return_number": np.ones(count, np.uint8),
        "number_of_returns": (1 + label).astype(np.uint8),
        "classification": np.tile([2, 6, 2, 2], count // 4).astype(np.uint8),
    }
    write_viewer(Cloud(xyz, fields), label, tmp_path / "s.html", ["ground", "other"], np.ones(count))
    page.goto((tmp_path / "s.html").as_uri())
    page.wait_for_selector("#view[data-frames]")
    return page


def test_a_long_scan_fills_the_width_beside_the_panel(scan: Any, tmp_path: Path) -> None:
    bright = pixels(scan, tmp_path).sum(2) > 0.6
    columns = np.flatnonzero(bright.mean(0) > 0.01)
    assert np.ptp(columns) > 0.75 * bright.shape[1]


def test_values_have_a_colour_bar_and_classes_a_legend(scan: Any) -> None:
    scan.select_option("#mode", "intensity")
    assert scan.is_visible("#bar")
    assert float(scan.inner_text("#high").replace(",", "")) == pytest.approx(990, abs=5)
    scan.select_option("#mode", "disagreement")
    assert not scan.is_visible("#bar")
    text = scan.inner_text("#legend")
    assert "differs" in text
    assert "5,000" in text
    scan.select_option("#mode", "given")
    assert "building" in scan.inner_text("#legend")


def test_a_click_shows_the_values_of_a_point_and_a_drag_does_not(scan: Any) -> None:
    scan.mouse.move(750, 380)
    scan.mouse.down()
    scan.mouse.move(760, 390, steps=3)
    scan.mouse.up()
    assert not scan.is_visible("#picked")
    scan.keyboard.press("r")
    scan.mouse.click(750, 380)
    text = scan.inner_text("#picked")
    assert "600," not in text  # a coordinate to copy has no separators
    assert "given classification" in text
    x = float(text.split("x\n")[1].split()[0])
    assert 600_000 <= x <= 600_400


def test_a_profile_opens_by_keyboard_and_follows_its_width(scan: Any) -> None:
    scan.focus("#view")
    scan.keyboard.press("p")
    assert scan.get_attribute("#profile", "aria-pressed") == "true"
    before = int(scan.get_attribute("#side", "data-points"))
    scan.fill("#width", "60")
    assert int(scan.get_attribute("#side", "data-points")) > 2 * before > 0
    assert "400 long" in scan.inner_text("#about") or "398" in scan.inner_text("#about")
    for place in (600, 320), (900, 400):
        scan.mouse.click(*place)
    assert "400 long" not in scan.inner_text("#about")
    scan.click("#profile")
    assert not scan.is_visible("#section")
