"""The layer's benchmark on a tiny problem: every form is timed and agrees, and results contain the expectations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fgnn.bench import layer
from fgnn.bench.measure import compare, measure
from fgnn.bench.peers import make_problem


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(
        layer, "make_problem", lambda *_, device, seed: make_problem(1, 64, 4, 8, device=device, seed=seed)
    )
    measured = layer.run("cpu", out=str(tmp_path), sweep=False, repeats=1, quiet=True)
    measured["folder"] = tmp_path
    return measured


def test_all_forms_of_the_same_function_agree_with_float64(result: dict[str, Any]) -> None:
    for name in ("ours", "ours, plain torch", *(n for n in layer.SAME_FUNCTION if "compiled" not in n)):
        assert result["forms"][name]["error"] < 1e-5, name


def test_a_result_is_written_with_its_page_and_chart(result: dict[str, Any]) -> None:
    stored = json.loads((result["folder"] / "layer-cpu.json").read_text())
    assert stored["forms"].keys() == result["forms"].keys()
    assert (result["folder"] / "layer-cpu.html").stat().st_size > 1000
    assert "ours" in (result["folder"] / "layer-cpu.svg").read_text()


def test_expected_and_measured_ratios_are_compared(result: dict[str, Any]) -> None:
    row = result["expected"]["authors, forward"]
    assert row["expected"] == 3.0
    assert row["found"] == result["ratios"]["authors"]["forward"]
    assert row["met"] == (row["found"] >= 3.0)


def test_gradients_are_recomputed_and_cleared() -> None:
    weight = torch.randn(3, 4, requires_grad=True)
    row = measure(lambda x: x @ weight, [torch.randn(5, 3)], [], 2, parameters=[weight])
    assert weight.grad is None
    assert row["both_called_ms"] >= row["forward_called_ms"] * 0.1
    assert compare(row, row)["forward"] == 1.0
