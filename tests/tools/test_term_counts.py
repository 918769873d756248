"""Counting the terms of model files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fgnn
from tools.term_counts import count_terms, main


def model() -> fgnn.GraphicalModel:
    made = fgnn.GraphicalModel([2, 3, 2])
    made.add_table((0, 1), np.add.outer([0.0, 1.0], [0.0, 2.0, 5.0]))
    made.add_table((1, 2), [[0.0, 1.0], [3.0, 1.0], [-np.inf, 2.0]])
    made.add_table((0, 1, 2), np.zeros((2, 3, 2)))
    return made


def test_terms_of_each_table_are_added_up() -> None:
    assert count_terms(model(), largest=6) == {
        "tables": 2,
        "configurations": 11,
        "terms": 3,
        "additive": 1,
        "comparisons_single": (2 * 2 + 3 * 1) + (1 + 1 + 0 + 1 + 2),
        "comparisons": (1 + 2) + 5,
        "left_out": 1,
    }


def test_a_folder_becomes_a_file_with_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models" / "ours").mkdir(parents=True)
    fgnn.write_model(model(), tmp_path / "models" / "ours" / "a.uai")
    (tmp_path / "models" / "ours" / "broken.uai").write_text("MARKOV 1")
    main(tmp_path / "models", tmp_path / "terms.json", largest=1024, tables=2000)
    result = json.loads((tmp_path / "terms.json").read_text())
    assert result["families"]["ours"] == result["families"]["all"]
    assert (result["families"]["all"]["models"], result["families"]["all"]["terms"]) == (1, 4)
    printed = capsys.readouterr()
    assert "a.uai: 4 terms for 23 configurations" in printed.out
    assert "broken.uai" in printed.err
