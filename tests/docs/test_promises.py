"""The promises page is in step with what it is made from: stored results, stated bounds, and tests that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fgnn.memory_bounds import BOUNDS
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "promises.md").read_text(encoding="utf-8")


@pytest.fixture
def promises(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import promises

    return promises


def test_every_test_and_command_it_names_is_there() -> None:
    for name in re.findall(r"`(tests/[\w./]+|constraints/[\w./]+)`", PAGE):
        assert (ROOT / name).exists(), name
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make (\w+)`", PAGE)):
        assert re.search(rf"^[\w ]*\b{target}\b[\w ]*:", makefile, re.MULTILINE), target


def test_the_tables_say_what_the_files_say(promises: Any) -> None:
    assert all(bound.what in promises.bounds_markdown() for bound in BOUNDS.values())
    for name, make in (
        ("fuzz", promises.fuzz_markdown),
        ("faults", promises.faults_markdown),
        ("load", promises.load_markdown),
        ("sets", promises.sets_markdown),
    ):
        assert f"{{fgnn-{name}}}" in PAGE
        stored, text = promises.RESULTS / f"{name}.json", make()
        if not stored.is_file():
            assert "No figures are stored" in text
            continue
        assert json.loads(stored.read_text(encoding="utf-8"))["command"] in text


def test_the_fuzzed_parsers_are_all_there_with_a_million_inputs_and_no_finding(promises: Any) -> None:
    from tests.fuzz.harnesses import HARNESSES

    stored = json.loads((promises.RESULTS / "fuzz.json").read_text(encoding="utf-8"))
    assert set(stored["parsers"]) == set(HARNESSES)
    assert sum(row["cases"] for row in stored["parsers"].values()) == stored["total"]["cases"] >= 1_000_000
    assert stored["total"]["findings"] == 0
    assert f"{stored['total']['cases']:,}" in promises.fuzz_markdown()


def test_every_set_was_tried_and_nothing_failed(promises: Any) -> None:
    stored = json.loads((promises.RESULTS / "sets.json").read_text(encoding="utf-8"))
    tried = {(row["set"], row["python"].rpartition(".")[0]) for row in stored["rows"].values()}
    assert {("oldest", "3.11"), ("newest", "3.11"), ("newest", "3.12"), ("newest", "3.13")} <= tried
    assert all(row["failed"] == 0 and row["passed"] > 1000 for row in stored["rows"].values())


def test_a_missing_file_is_said_to_be_missing(promises: Any, tmp_path: Path) -> None:
    for make in (
        promises.fuzz_markdown,
        promises.faults_markdown,
        promises.load_markdown,
        promises.sets_markdown,
    ):
        assert "No figures are stored in this copy" in make(tmp_path)
