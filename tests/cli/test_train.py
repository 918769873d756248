"""`fgnn train`, `evaluate`, `data` and `reproduce` as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fgnn.cli import build_app
from fgnn.tasks.recipe import recipe_yaml
from tests.tasks.helpers import small_recipe


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_app(), [str(a) for a in arguments])


def test_train_then_evaluate(tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(recipe_yaml(small_recipe(steps=10)), encoding="utf-8")
    done = _run("train", recipe, "--out", tmp_path / "run", "--device", "cpu", "--seed", 5)
    assert done.exit_code == 0, done.output
    assert "step 10, held-out agreement" in done.output
    assert done.output.splitlines()[-1] == f"next: fgnn evaluate {tmp_path / 'run'}"
    shown = _run("evaluate", tmp_path / "run", "--count", 40, "--device", "cpu", "--json")
    assert shown.exit_code == 0, shown.output
    metrics = json.loads(shown.stdout.splitlines()[-1])
    assert metrics["kind 1"]["decoded"]["feasible"] == 1.0
    table = _run(
        "evaluate", tmp_path / "run", "--count", 40, "--device", "cpu", "--kind", 3, "--length", 12, "--window", 5
    )
    assert "kind 3, decoded" in table.output


def test_data_is_written_with_labels(tmp_path: Path) -> None:
    from fgnn.data import load_models

    assert (
        _run("data", "chain", "--kind", 3, "--count", 12, "--length", 9, "--window", 4, "--out", tmp_path).exit_code
        == 0
    )
    stored = load_models(tmp_path)
    assert stored.labels.shape == (12, 9)
    assert stored.family.kind == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "no-such-recipe"], "no such recipe file"),
        (["evaluate", "no-such-weights"], "no such weights"),
        (["reproduce", "table9"], "Expected an experiment among table1"),
        (["reproduce", "table1", "--window", "7"], "Expected a window of 8 or 9"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    result = _run(*arguments)
    assert result.exit_code != 0
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
