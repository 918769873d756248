"""`fgnn marginals`: formats, exit codes and messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel, marginals, write_model
from tests.cli.command import fgnn

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    m = GraphicalModel([2, 3, 2])
    m.add_unaries(rng.normal(size=7))
    m.add_table((0, 1), rng.normal(size=(2, 3)))
    m.add_table((1, 2), rng.normal(size=(3, 2)))
    write_model(m, tmp_path / "small.uai")
    return tmp_path / "small.uai"


def test_mar_format(model: Path, capsys: Capture) -> None:
    from fgnn import read_model

    code, out, err = fgnn(capsys, "marginals", model)
    assert code == 0
    head, numbers = out.splitlines()
    assert head == "MAR"
    assert err.startswith("exact")
    expected = ["3"]
    for p in marginals(read_model(model)).variables:
        expected += [str(len(p)), *(f"{v:.9g}" for v in p)]
    assert numbers.split() == expected


def test_pr_format_and_json_agree(model: Path, capsys: Capture) -> None:
    _, pr, _ = fgnn(capsys, "marginals", model, "--pr")
    _, out, _ = fgnn(capsys, "marginals", model, "--json", "-m", "brute-force")
    reply = json.loads(out)
    assert pr.splitlines()[0] == "PR"
    assert float(pr.splitlines()[1]) == pytest.approx(reply["log10_partition"], abs=1e-9)
    assert reply["status"] == "exact"


def test_impossible_evidence_says_so_and_exits_with_1(tmp_path: Path, capsys: Capture) -> None:
    m = GraphicalModel([2, 2])
    m.add_table((0, 1), [[0.0, -np.inf], [0.0, 0.0]])
    write_model(m, tmp_path / "m.uai")
    (tmp_path / "m.evid").write_text("2 0 0 1 1")
    code, out, err = fgnn(capsys, "marginals", tmp_path / "m.uai", "-e", tmp_path / "m.evid")
    assert (code, out) == (1, "")
    assert "-inf" in err


def test_bad_input_is_one_line_and_exit_2(model: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "broken.uai").write_text("MARKOV\n2\n2")
    for words in ([tmp_path / "broken.uai"], [model, "-m", "nothing"], [model, "-o", "iterations=x"]):
        code, _, err = fgnn(capsys, "marginals", *words)
        assert (code, len(err.splitlines())) == (2, 1)
