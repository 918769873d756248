"""The curve of a solve: what it keeps, and the files it writes."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel, solve
from fgnn.errors import InputError
from fgnn.infer import Progress
from fgnn.report.solve_curve import SolveCurve, check_curve_file, write_curve


def test_scores_only_rise_and_bounds_only_fall() -> None:
    curve = SolveCurve()
    for score, bound in [(-inf, 9.0), (3.0, inf), (2.0, 8.0), (4.0, 8.5)]:
        curve.progress(Progress("ad3", 0.0, score, bound))
    assert [(s, b) for _, s, b in curve.points] == [(-inf, 9.0), (3.0, 9.0), (3.0, 8.0), (4.0, 8.0)]
    assert curve.gap == 4.0
    steps = curve.steps()
    assert [v for _, v in steps["score"]] == [3.0, 3.0, 3.0, 3.0, 4.0]
    assert [t for t, _ in steps["bound"]] == sorted(t for t, _ in steps["bound"])


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<svg"), (".html", b"<!doctype html>")])
def test_each_suffix_is_a_file_of_its_kind(tmp_path: Path, suffix: str, begins: bytes) -> None:
    model = GraphicalModel([2, 2])
    model.add_table((0, 1), np.eye(2))
    curve = SolveCurve()
    solution = solve(model, "ad3", progress=curve.progress)
    curve.end(solution)
    assert (curve.score, curve.bound) == (solution.score, solution.bound)
    check_curve_file(tmp_path / f"a{suffix}")
    write_curve(curve, solution, "a <model>", tmp_path / f"a{suffix}")
    data = (tmp_path / f"a{suffix}").read_bytes()
    assert data.startswith(begins)
    assert b"<model>" not in data


@pytest.mark.parametrize(("name", "message"), [("a.pdf", r"\.png, \.svg, \.html.*\.pdf"), ("no/a.png", "folder")])
def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_curve_file(tmp_path / name)
