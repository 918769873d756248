"""`fgnn marginals`: formats, exit codes and messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel, marginals, write_model
from tests.cli.test_solve import fgnn as run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    m = GraphicalModel([2, 3, 2])
    m.add_unaries(rng.normal(size=7))
    m.add_table((0, 1), rng.normal(size=(2, 3)))
    m.add_table((1, 2), rng.normal(size=(3, 2)))
    write_model(m, tmp_path / "small.uai")
    return tmp_path / "small.uai"


def test_mar_format(model: Path) -> None:
    from fgnn import read_model

    result = run("marginals", str(model))
    assert result.returncode == 0
    head, numbers = result.stdout.splitlines()
    assert head == "MAR"
    assert result.stderr.startswith("exact")
    expected = ["3"]
    for p in marginals(read_model(model)).variables:
        expected += [str(len(p)), *(f"{v:.9g}" for v in p)]
    assert numbers.split() == expected


def test_pr_format_and_json_agree(model: Path) -> None:
    pr = run("marginals", str(model), "--pr")
    reply = json.loads(run("marginals", str(model), "--json", "-m", "brute-force").stdout)
    assert pr.stdout.splitlines()[0] == "PR"
    assert float(pr.stdout.splitlines()[1]) == pytest.approx(reply["log10_partition"], abs=1e-9)
    assert reply["status"] == "exact"


def test_impossible_evidence_says_so_and_exits_with_1(tmp_path: Path) -> None:
    m = GraphicalModel([2, 2])
    m.add_table((0, 1), [[0.0, -np.inf], [0.0, 0.0]])
    write_model(m, tmp_path / "m.uai")
    (tmp_path / "m.evid").write_text("2 0 0 1 1")
    result = run("marginals", str(tmp_path / "m.uai"), "-e", str(tmp_path / "m.evid"))
    assert result.returncode == 1
    assert result.stdout == ""
    assert "-inf" in result.stderr


def test_bad_input_is_one_line_and_exit_2(model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.uai").write_text("MARKOV\n2\n2")
    for args in ([str(tmp_path / "broken.uai")], [str(model), "-m", "nothing"], [str(model), "-o", "iterations=x"]):
        result = run("marginals", *args)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1
