"""Every proof of every method, checked in exact integers by `tools.check_proofs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fgnn import solve
from tools import check_proofs
from tools.check_proofs import Models, Structure, check, check_many


def small() -> Models:
    """Two models of one table in units of 1/4; the second is infeasible."""
    never = check_proofs._NEVER
    table = np.array([[[3, 0], [1, 7]], [[never, never], [never, never]]])
    factors = [np.zeros((2, 2), np.int64), np.zeros((2, 2), np.int64), table]
    structure = Structure((2, 2), ((0, 1),), ())
    return Models(structure, factors, np.zeros((2, 0, 2), np.int64), [0, 0], np.array([0.25, 0.25]))


def claims(**changes: Any) -> Any:
    """The solutions of `small`, with some of what they claim changed."""
    solutions = solve(small().batch(torch.float64), "exact")
    for name, value in changes.items():
        object.__setattr__(solutions, name, value)
    return solutions


def test_true_claims_pass() -> None:
    solutions = claims()
    assert solutions.status == ["optimal", "infeasible"]
    assert solutions.score.tolist() == [1.75, -np.inf]
    assert not check(small(), solutions)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"assignment": torch.tensor([[0, 0], [0, 0]])}, "4 more is reachable, which the gap does not cover"),
        ({"bound": torch.tensor([-torch.inf, -torch.inf])}, "called infeasible"),
        ({"gap": torch.tensor([0.5, 0.0])}, "too large a gap for a proof"),
        ({"gap": torch.tensor([torch.nan, 0.0])}, "not a number"),
        ({"feasible": torch.tensor([True, True])}, "feasible is True"),
        ({"status": ["optimal", "optimal"]}, "but infeasible"),
    ],
)
def test_false_claims_are_caught(changes: dict[str, Any], fault: str) -> None:
    assert any(fault in what for what in check(small(), claims(**changes)))


def test_every_proof_holds_in_exact_integers(tmp_path: Path) -> None:
    pytest.importorskip("pytoulbar2")
    results = check_many(600, seed=1, size=10, out=tmp_path / "proofs.json")
    assert results["faults"] == []
    assert set(results["methods"]) >= {"exact", "brute-force", "auto", "ad3", "max-product"}
    for method in ("exact", "brute-force"):
        tally = results["methods"][method]
        assert tally["optimal"] + tally["proved infeasible"] == tally["answers"]


def test_a_run_continues_where_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "proofs.json"
    methods = {name: check_proofs.METHODS[name] for name in ("exact", "brute-force")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_proofs, "METHODS", methods)
        check_many(20, size=10, out=out)
        continued, whole = check_many(40, size=10, out=out), check_many(40, size=10)
        assert json.loads(out.read_text(encoding="utf-8")) == continued
        assert continued["methods"] == whole["methods"]
        with pytest.raises(SystemExit, match="Expected results of seed 5"):
            check_many(20, seed=5, size=10, out=out)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_proof_of_a_hundred_thousand_models_holds() -> None:
    pytest.importorskip("pytoulbar2")
    results = check_many(100_000, seed=2)
    assert results["faults"] == []
    assert set(results["methods"]) == set(check_proofs.METHODS)
