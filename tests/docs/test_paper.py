"""The page that goes through the paper: its files and tests exist, and no row lacks a verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fgnn.reproduce import paper
from tests.docs.pages import DOCS, ROOT

TEXT = (DOCS / "paper.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """The cells of every table row but the headers."""
    lines = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| in the paper")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_every_row_has_files_tests_and_a_verdict(row: list[str]) -> None:
    assert len(row) == 4, row
    subject, files, tests, verdict = row
    assert subject
    names = CODE.findall(files)
    assert names
    for name in names:
        assert (ROOT / name).is_file(), name
    checks = CODE.findall(tests)
    assert checks
    for check in checks:
        file, function = check.split("::")
        assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), check
    assert re.match(r"(same|differs|cannot be had)\b", verdict), verdict


def numbers(part: str) -> list[float]:
    """The numbers of a row's first cell, after its name."""
    return [float(x) for x in re.findall(r"\d+\.\d+", part)]


def test_every_cell_of_the_papers_tables_is_there() -> None:
    cells = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
    for number, table in (("Table 2", paper.TABLE2), ("Table 3", paper.TABLE3)):
        body = next(text for heading, text in cells.items() if heading.startswith(number))
        for name, values in table.items():
            (line,) = [row for row in body.splitlines() if re.match(rf"\| {name}: ", row)]
            assert numbers(line.split(" | ")[0]) == [v for v in values if v is not None], name
    first = next(text for heading, text in cells.items() if heading.startswith("Table 1"))
    for row in paper.TABLE1.values():
        for cell in row:
            if cell is not None:
                assert f"{cell[0]:.1f} ± {cell[1] / 100:.3f}" in first, cell
    assert all(str(value) in first for value in paper.ABLATION.values())


def test_every_label_of_the_source_is_named() -> None:
    source = Path(ROOT.parent / "shared" / "paper")
    files = sorted(source.glob("*.tex")) if source.is_dir() else []
    if not files:
        pytest.skip("Expected the paper's source beside the project")
    labels = set(re.findall(r"\\label\{(?:eq|lemma|propos):([^}]+)\}", files[0].read_text(encoding="utf-8")))
    labels -= {"decomposed", "bp_supp", "FGNN_supp"}  # to_z and to_x together, and repetitions in the supplement
    aliases = {"lossless_agg": "Lemma lossless_agg"}
    assert not {label for label in labels if aliases.get(label, f"({label})") not in TEXT}
