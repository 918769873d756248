"""The playground in a real browser: load, solve, step, edit, fail, export, by mouse and by keyboard."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fgnn import read_model, write_model
from fgnn.play import Playground


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = Playground()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.url
    server.shutdown()
    server.server_close()


@pytest.fixture
def open_page(page: Any, url: str) -> Any:
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    return page


def position(page: Any, key: str) -> tuple[float, float]:
    """Where a node is, in the coordinates of the drawing."""
    x, y = page.get_attribute(f"[data-key={key}]", "transform").removeprefix("translate(").rstrip(")").split()
    return float(x), float(y)


def score(page: Any) -> str:
    return str(page.inner_text("#results tbody tr td:nth-child(2)"))


def test_it_loads_solves_and_shows_the_answer(open_page: Any) -> None:
    open_page.select_option("#method", "exact")
    open_page.click("#solve")
    open_page.wait_for_selector("#results tbody tr[aria-selected=true]")
    assert "optimal" in open_page.inner_text("#results")
    ones = open_page.locator("[data-key^=variable-][aria-label$='state 1']").count()
    assert 0 < ones < 10


def test_stepping_through_messages(open_page: Any) -> None:
    open_page.click("#run")
    open_page.get_by_text("after iteration 1 of 12").wait_for()
    open_page.click("#forward")
    open_page.click("#forward")
    open_page.click("#back")
    open_page.get_by_text("after iteration 2 of 12").wait_for()


def test_messages_and_beliefs_of_a_node_are_shown_as_numbers(open_page: Any) -> None:
    open_page.click("[data-key=variable-2]")
    open_page.click("#run")
    open_page.get_by_text("after iteration 1 of 12").wait_for()
    first = open_page.inner_text("#numbers")
    assert "belief" in first
    assert first.count("from table") == 2  # its neighbours in the chain
    assert "from budget" in first
    open_page.click("#forward")
    assert open_page.inner_text("#numbers") != first
    open_page.locator("[data-key=factor-0]").focus()
    open_page.keyboard.press("Enter")
    text = open_page.inner_text("#numbers")
    assert "to variable 0" in text
    assert "from variable 1" in text


def test_the_network_steps_too_and_agrees(open_page: Any) -> None:
    open_page.select_option("#example", "grid")
    open_page.wait_for_selector("[data-key=variable-8]")
    open_page.check("#network")
    open_page.click("#run")
    open_page.get_by_text("network and messages differ by").wait_for()
    text = open_page.inner_text("#progress")
    assert float(text.rsplit(" ", 1)[1]) < 1e-6
    assert "after FGNN layer 1 of 12" in text
    open_page.focus("#forward")
    open_page.keyboard.press("Enter")
    open_page.get_by_text("after FGNN layer 2 of 12").wait_for()


def test_editing_a_potential_changes_the_answer(open_page: Any) -> None:
    open_page.select_option("#method", "exact")
    open_page.click("#solve")
    open_page.wait_for_selector("#results tbody tr[aria-selected=true]")
    before = float(score(open_page))
    open_page.click("[data-key=variable-0]")
    field = open_page.get_by_label("θ(1)")
    field.fill("50")
    field.press("Tab")
    open_page.click("#solve")
    open_page.wait_for_selector("#results tbody tr[aria-selected=true]")
    assert float(score(open_page)) > before + 40
    assert "state 1" in open_page.get_attribute("[data-key=variable-0]", "aria-label")


def test_an_invalid_number_is_rejected(open_page: Any) -> None:
    open_page.click("[data-key=variable-0]")
    field = open_page.get_by_label("θ(0)")
    field.fill("seven")
    field.press("Tab")
    assert "Expected a number or -inf (got 'seven')" in open_page.inner_text("#error")


def test_building_by_keyboard_alone(open_page: Any) -> None:
    for _ in range(4):  # tour, example, clear (there is nothing to undo), + variable
        open_page.keyboard.press("Tab")
    open_page.keyboard.press("Enter")
    open_page.wait_for_selector("[data-key=variable-10]")
    open_page.locator("[data-key=variable-10]").focus()
    open_page.keyboard.press("Enter")
    open_page.locator("[data-key=variable-0]").focus()
    open_page.keyboard.press("Shift+Enter")
    open_page.locator("#add-table").focus()
    open_page.keyboard.press("Enter")
    open_page.get_by_text("Table over 10, 0").wait_for()
    place = position(open_page, "variable-10")
    open_page.locator("[data-key=variable-10]").focus()
    open_page.keyboard.press("ArrowRight")
    assert position(open_page, "variable-10") == (pytest.approx(place[0] + 10), place[1])
    open_page.keyboard.press("Enter")
    open_page.keyboard.press("Delete")
    assert open_page.locator("[data-key=variable-10]").count() == 0


def test_a_factor_without_variables_is_explained(open_page: Any) -> None:
    open_page.click("#add-variable")
    open_page.click("#add-table")
    assert "Select two or more variables first" in open_page.inner_text("#error")


def test_files_are_imported_and_exported(open_page: Any, tmp_path: Path) -> None:
    open_page.select_option("#example", "paper")
    open_page.wait_for_selector("[data-key=variable-9]", state="detached")
    with open_page.expect_download() as download:
        open_page.click("#save-uai")
    download.value.save_as(tmp_path / "out.uai")
    model = read_model(tmp_path / "out.uai")
    assert model.num_variables == 3
    (tmp_path / "bad.uai").write_text("MARKOV\n2\n2 2\n1\n2 0 5\n4 1 1 1 1\n")
    open_page.set_input_files("#file", tmp_path / "bad.uai")
    open_page.get_by_role("alert").get_by_text("bad.uai").wait_for()
    assert open_page.locator("[data-key^=variable-]").count() == 3
    open_page.select_option("#example", "chain")
    open_page.wait_for_selector("[data-key=variable-9]")
    open_page.set_input_files("#file", tmp_path / "out.uai")
    open_page.wait_for_selector("[data-key=variable-9]", state="detached")
    open_page.select_option("#example", "chain")
    write_model(model, tmp_path / "packed.fgm.xz")  # the server unpacks what the page cannot
    open_page.set_input_files("#file", tmp_path / "packed.fgm.xz")
    open_page.wait_for_selector("[data-key=variable-9]", state="detached")


def test_a_link_contains_the_model(open_page: Any, browser: Any) -> None:
    open_page.click("[data-key=variable-0]")
    open_page.get_by_label("θ(1)").fill("12.5")
    open_page.get_by_label("θ(1)").press("Tab")
    open_page.wait_for_function("location.hash.length > 1")
    open_page.wait_for_timeout(300)
    other = browser.new_page()
    other.goto(open_page.url)
    other.wait_for_selector("[data-key=variable-9]")
    other.click("[data-key=variable-0]")
    assert other.get_by_label("θ(1)").input_value() == "12.5"
    other.close()


@pytest.mark.parametrize(
    "model", ["", "{}", "[]", '{"variables": [null]}', '{"variables": [{"states": 2}], "factors": [{"scope": [9]}]}']
)
def test_a_broken_link_is_reported_and_the_page_still_works(page: Any, url: str, model: str) -> None:
    page.goto(f"{url}#{base64.b64encode(model.encode()).decode() or 'x'}")
    page.wait_for_selector("[data-key=variable-9]")
    assert page.inner_text("#error")
    page.select_option("#method", "exact")
    page.click("#solve")
    page.wait_for_selector("#results tbody tr[aria-selected=true]")


def test_methods_are_compared_by_score_bound_and_time(open_page: Any) -> None:
    open_page.click("#compare")
    open_page.wait_for_selector("#results tbody tr:nth-child(9)", timeout=60_000)
    rows = open_page.locator("#results tbody tr").all_inner_texts()
    assert {row.split("\t")[0] for row in rows} >= {"exact", "lp", "ad3", "max-product", "network"}
    assert all(len(row.split("\t")) == 5 for row in rows)


def test_a_table_and_a_budget_are_edited_and_a_node_is_dragged(open_page: Any) -> None:
    open_page.click("[data-key=factor-0]")
    field = open_page.get_by_label("θ(1, 1)")
    field.fill("-inf")
    field.press("Tab")
    assert not open_page.inner_text("#error")
    open_page.locator("[data-key^=factor-][aria-label^=budget]").first.focus()
    open_page.keyboard.press("Enter")
    open_page.get_by_label("at most").fill("1")
    open_page.get_by_label("at most").press("Tab")
    assert "0 to 1 of variables" in str(
        open_page.locator("[data-key^=factor-][aria-label^=budget]").first.get_attribute("aria-label")
    )
    box, before = open_page.locator("[data-key=variable-4] circle").bounding_box(), position(open_page, "variable-4")
    open_page.mouse.move(box["x"] + 8, box["y"] + 8)
    open_page.mouse.down()
    open_page.mouse.move(box["x"] + 48, box["y"] + 8, steps=4)
    open_page.mouse.up()
    scale = open_page.evaluate("playground.currentView().scale")
    assert position(open_page, "variable-4")[0] == pytest.approx(before[0] + 40 / scale, abs=2)


def test_a_screenshot_shows_nodes_of_every_kind(open_page: Any, tmp_path: Path) -> None:
    """Check the colours of budgets and states; exact pixels depend on fonts."""
    open_page.select_option("#method", "exact")
    open_page.click("#solve")
    open_page.wait_for_selector("#results tbody tr[aria-selected=true]")
    shot = tmp_path / "play.png"
    open_page.screenshot(path=shot)
    import matplotlib.image

    pixels = (matplotlib.image.imread(shot)[..., :3] * 255).round().astype(int).reshape(-1, 3)
    colours = {tuple(c) for c in pixels[::3].tolist()}
    assert (0xD9, 0xB4, 0x00) in colours  # a budget
    assert (0x2F, 0x6F, 0xB0) in colours  # a variable at 1
    assert len(colours) > 20
