"""The guarantees page agrees with the stored results, the stated bounds and the tests it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fgnn.bounds import BOUNDS
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "guarantees.md").read_text(encoding="utf-8")


@pytest.fixture
def guarantees(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import guarantees

    return guarantees


def test_every_named_test_and_command_exists() -> None:
    text = PAGE + (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(tests/[\w./]+|constraints/[\w./]+|\.ci/\w+)`", text):
        assert (ROOT / name).exists(), name
    for module in set(re.findall(r"`(fgnn(?:\.[a-z_0-9]+)+)", text)):
        source = ROOT / "src" / module.replace(".", "/")
        assert source.is_dir() or source.with_suffix(".py").is_file() or source.parent.with_suffix(".py").is_file(), (
            module
        )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([\w-]+)`", text)):
        assert re.search(rf"^[\w -]*\b{target}\b[\w -]*:", makefile, re.MULTILINE), target


def test_the_tables_agree_with_the_files(guarantees: Any) -> None:
    assert all(bound.what in guarantees.bounds_markdown() for bound in BOUNDS.values())
    for name, make in (
        ("fuzz", guarantees.fuzz_markdown),
        ("faults", guarantees.faults_markdown),
        ("load", guarantees.load_markdown),
        ("proofs", guarantees.proofs_markdown),
        ("sets", guarantees.sets_markdown),
    ):
        assert f"{{fgnn-{name}}}" in PAGE
        stored, text = guarantees.RESULTS / f"{name}.json", make()
        if not stored.is_file():
            assert "No figures are stored" in text
            continue
        assert json.loads(stored.read_text(encoding="utf-8"))["command"] in text


def test_every_parser_was_fuzzed_with_a_million_inputs_in_all_and_no_finding(guarantees: Any) -> None:
    from tests.fuzz.harnesses import HARNESSES

    stored = json.loads((guarantees.RESULTS / "fuzz.json").read_text(encoding="utf-8"))
    assert set(stored["parsers"]) == set(HARNESSES)
    assert sum(row["cases"] for row in stored["parsers"].values()) == stored["total"]["cases"] >= 1_000_000
    assert stored["total"]["findings"] == 0
    assert f"{stored['total']['cases']:,}" in guarantees.fuzz_markdown()


def test_every_package_set_was_tested_without_failures(guarantees: Any) -> None:
    stored = json.loads((guarantees.RESULTS / "sets.json").read_text(encoding="utf-8"))
    tried = {(row["set"], row["python"].rpartition(".")[0]) for row in stored["rows"].values()}
    assert {("oldest", "3.11"), ("newest", "3.11"), ("newest", "3.12"), ("newest", "3.13")} <= tried
    assert all(row["failed"] == 0 and row["passed"] > 1000 for row in stored["rows"].values())


def test_a_missing_file_is_reported(guarantees: Any, tmp_path: Path) -> None:
    for make in (
        guarantees.fuzz_markdown,
        guarantees.faults_markdown,
        guarantees.load_markdown,
        guarantees.sets_markdown,
    ):
        assert "No figures are stored in this copy" in make(tmp_path)
