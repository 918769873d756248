"""Several runs in a row within a budget, evaluated and packed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from fgnn.errors import InputError
from fgnn.tasks.data_settings import ChainData
from fgnn.tasks.evaluate_map import evaluate
from fgnn.tasks.recipe import recipe_yaml
from fgnn.train.run_folder import RunFolder
from fgnn.weights import load_weights
from tests.tasks.helpers import small_recipe
from tools.learning_curves import curves
from tools.ship import ship_sweep
from tools.sweep import read_plan, run_sweep, some_jobs

PLAN = """
device: cpu
folder: {folder}/runs
jobs:
  - {{name: first, recipe: {folder}/small.yaml, evaluate: 40}}
  - {{name: wrong, recipe: {folder}/small.yaml, changes: ["optimiser.rate=1e30", "optimiser.clip="], evaluate: 0}}
  - name: second
    recipe: {folder}/small.yaml
    changes: ["steps=10", "data.chain.kinds=[2]"]
    after: first
    evaluate: 40
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(RunFolder, "draw", lambda self: None)
    (tmp_path / "small.yaml").write_text(recipe_yaml(small_recipe(steps=20)), encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(PLAN.format(folder=tmp_path), encoding="utf-8")
    return tmp_path / "plan.yaml"


def test_a_sweep_from_end_to_end(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = run_sweep(read_plan(plan), tmp_path / "out", time_budget=300)
    assert [o.finished for o in outcomes] == [True, False, True]
    assert "the loss is nan" in outcomes[1].error
    assert outcomes[0].results["kind 1"]["decoded"]["feasible"] == 1.0
    assert "kind 2" in outcomes[2].results
    with tarfile.open(tmp_path / "out" / "sweep-0.tar") as tar:
        names = tar.getnames()
        tar.extractall(tmp_path / "back", filter="data")
    assert {"summary.json", "first/first.safetensors", "first/first.json", "second/metrics.jsonl"} <= set(names)
    card = load_weights(tmp_path / "back" / "first" / "first.safetensors").card
    assert card["results"] == outcomes[0].results
    assert json.loads((tmp_path / "back" / "summary.json").read_text())[2]["name"] == "second"
    assert "first: 20 steps" in capsys.readouterr().out
    again = run_sweep(read_plan(plan), tmp_path / "out", time_budget=300)
    assert again[0].seconds == outcomes[0].seconds  # a finished job is not run again


def test_a_job_packed_without_weights_still_leaves_its_record(plan: Path, tmp_path: Path) -> None:
    plan.write_text(plan.read_text(encoding="utf-8").replace("evaluate: 40}", "evaluate: 40, weights: false}"))
    outcomes = run_sweep(some_jobs(read_plan(plan), ["first"]), tmp_path / "out")
    assert [o.name for o in outcomes] == ["first"]
    with tarfile.open(tmp_path / "out" / "sweep-0.tar") as tar:
        names = sorted(tar.getnames())
    assert names == ["first/config.yaml", "first/first.json", "first/metrics.jsonl", "summary.json"]
    assert ship_sweep([tmp_path / "out" / "sweep-0.tar"], [], tmp_path / "package", "how") == []
    record = json.loads((tmp_path / "package" / "records.json").read_text())["first"]
    assert record["results"] == outcomes[0].results
    assert record["finished"] is True
    assert record["command"] == "how"
    with pytest.raises(InputError, match=r"Expected jobs among first, wrong, second .*'third'"):
        some_jobs(read_plan(plan), ["third"])


@pytest.mark.parametrize("path", sorted(Path("benchmarks").glob("map_*.yaml")), ids=lambda path: path.stem)
def test_the_plans_of_the_project_can_be_read(path: Path) -> None:
    assert read_plan(path).jobs


def test_jobs_without_time_are_reported(plan: Path, tmp_path: Path) -> None:
    assert [o.error for o in run_sweep(read_plan(plan), tmp_path / "out", time_budget=1)] == ["no time left"] * 3


def test_changes_reach_into_the_recipe(plan: Path) -> None:
    first, _, second = read_plan(plan).jobs
    assert first.changed_recipe().name == "first"
    changed = second.changed_recipe()
    assert (changed.steps, changed.data.chain) == (10, ChainData((2,), 8, 4, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs: [{name: a, recipe: nowhere}]", "no such recipe file"),
        ("jobs: [{name: a, recipe: tiny}, {name: a, recipe: tiny}]", r"jobs\[1\]: Expected distinct names"),
        ("jobs: [{name: a, recipe: tiny, after: b}]", r"jobs\[0\].after: Expected a job before this one"),
        ("jobs: [{name: a, recipe: tiny, changes: [bath=3]}]", "bath: unknown key; did you mean 'batch'"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_runs(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "plan.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_plan(tmp_path / "plan.yaml")


def test_evaluation_on_other_data(plan: Path, tmp_path: Path) -> None:
    run_sweep(read_plan(plan), tmp_path / "out")
    results = evaluate(tmp_path / "runs" / "first", instances=32, chain=ChainData((2, 3), 12, 5, 2))
    assert list(results) == ["kind 2", "kind 3"]
    for result in results.values():
        assert result.decoded.feasible == 1.0
        assert result.decoded.optimal >= result.raw.optimal


def test_shipping_keeps_some_weights_and_the_record_of_the_others(plan: Path, tmp_path: Path) -> None:
    outcomes = run_sweep(read_plan(plan), tmp_path / "out")
    drawn = curves([tmp_path / "out" / "sweep-0.tar"])
    assert [x for x, _ in drawn["first"]] == [5 * 16, 10 * 16, 15 * 16, 20 * 16]
    shipped = ship_sweep([tmp_path / "out" / "sweep-0.tar"], {"first"}, tmp_path / "package", "make weights")
    assert shipped == ["first"]
    assert load_weights(tmp_path / "package" / "first.safetensors").card["command"] == "make weights"
    records = json.loads((tmp_path / "package" / "records.json").read_text())
    assert list(records) == ["second"]
    assert records["second"]["results"] == outcomes[2].results
    with pytest.raises(InputError, match="Expected weights of third"):
        ship_sweep([tmp_path / "out" / "sweep-0.tar"], {"third"}, tmp_path / "package")
