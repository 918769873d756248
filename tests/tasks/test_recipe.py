"""Recipes: strict, with errors that name the file and the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from fgnn.errors import InputError
from fgnn.schema import parse, plain
from fgnn.tasks.recipe import Recipe, read_recipe, recipe_names, recipe_yaml
from fgnn.tasks.seeds import seed_for
from fgnn.train.update import rate_factor

GOOD = "data: {chain: {kinds: [1]}, instances: 100}\nepochs: 2\nbatch: 10\n"


def _write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "sede: 3\n", r"recipe.yaml, sede: unknown key; did you mean 'seed'\?"),
        ("data: {chain: {kind: 1}}\nsteps: 1\n", r"data.chain.kind: unknown key; did you mean 'kinds'\?"),
        ("batch: many\n", r"recipe.yaml, batch: Expected a whole number \(got 'many'\)"),
        ("batch: true\n", r"recipe.yaml, batch: Expected a whole number \(got True\)"),
        ("batch: 0\n", r"recipe.yaml, batch: Expected at least 1 .* \(got 0\)"),
        ("batch: 4\nbatch: 5\n", r"recipe.yaml, line 2: not YAML: the key 'batch' is there twice"),
        ("data: {chain: {}, chain: {}}\n", r"recipe.yaml, line 1: .* 'chain' is there twice"),
        ("optimiser: {clip: -1}\n", r"recipe.yaml, optimiser.clip: Expected more than 0 .* \(got -1.0\)"),
        ("steps: -2\n", r"recipe.yaml, steps: Expected at least 1 .* \(got -2\)"),
        ("steps: 1000000000000\n", r"recipe.yaml, steps: .* at most 100,000,000 \(got 1000000000000\)"),
        ("label_smoothing: 5\n", r"recipe.yaml, label_smoothing: .* less than 1 \(got 5.0\)"),
        ("network: {aggregate: softmax(1e999)}\n", r"recipe.yaml, network.aggregate: .*gamma .* \(got inf\)"),
        ("network: {width: 99999}\n", r"recipe.yaml, network.width: .* \(got 99999\)"),
        ("name: /etc/passwd\n", r"recipe.yaml, name: .*file name.* \(got '/etc/passwd'\)"),
        ("name: ../up\n", r"recipe.yaml, name: .*file name.* \(got '../up'\)"),
        ('name: "\\e[2J"\n', r"recipe.yaml, name: .*printable"),
        ("seed: -1\n", r"recipe.yaml, seed: Expected at least 0"),
        (GOOD + "precision: fp8\n", r"recipe.yaml, precision: Expected one of fp32, bf16 \(got 'fp8'"),
        ("steps: 3\n", r"recipe.yaml, data: this key is required"),
        ("data: {}\nsteps: 3\n", r"recipe.yaml, data: Expected one of chain, grid, folder, .* \(got none\)"),
        (GOOD + "steps: 3\n", r"Expected one of epochs, steps and seconds \(got epochs, steps\)"),
        ("data: {chain: {}}\nepochs: 3\n", r"Expected data.instances"),
        (
            "data: {chain: {kinds: [4]}}\nsteps: 3\n",
            r"data.chain.kinds\[0\]: Expected at least 1 and at most 3 \(got 4\)",
        ),
        (
            GOOD + "network: {architecture: papr}\n",
            r"network.architecture: Expected an architecture among .* did you mean 'paper'",
        ),
        (GOOD + "checkpoint_every: 70\n", r"multiples of log_every, 50 \(got 70 and 0\)"),
        ("data: [1\n", r"recipe.yaml, line 2: not YAML"),
        ("just text", r"recipe.yaml: Expected a mapping of settings \(got 'just text'\)"),
    ],
)
def test_mistakes_are_one_line_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_recipe(_write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_recipes_by_name_and_suggestions_for_wrong_names() -> None:
    assert read_recipe("paper-map-1").data.instances == 90_000
    with pytest.raises(InputError, match="did you mean 'paper-map-1'"):
        read_recipe("paper-map1")


@pytest.mark.parametrize("name", recipe_names())
def test_every_packaged_recipe_round_trips_through_yaml(tmp_path: Path, name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.name == name
    assert read_recipe(_write(tmp_path, recipe_yaml(recipe))) == recipe


def test_the_recipe_of_the_paper_has_its_settings() -> None:
    recipe = read_recipe("paper-map-2")
    assert (recipe.optimiser.name, recipe.optimiser.rate) == ("adam", 3e-3)
    assert (recipe.schedule.name, recipe.schedule.factor, recipe.epochs) == ("exponential", 0.98, 50)
    assert rate_factor(recipe.schedule, 2 * 175, None, 175) == pytest.approx(0.98**2)


def test_the_cosine_schedule_warms_up_and_ends_at_its_floor() -> None:
    schedule = read_recipe("deep-map-1").schedule
    steps = [rate_factor(schedule, s, 6000, None) for s in range(6000)]
    assert steps[0] == pytest.approx(1 / 300)
    assert max(steps) == pytest.approx(1.0, abs=1e-3)
    assert steps[-1] < 1e-5
    assert rate_factor(schedule, 5000, None, None) == 1.0  # the length is not known yet


def test_seeds_differ_by_purpose_and_counter() -> None:
    seeds = {seed_for(s, p, n) for s in range(3) for p in ("train", "validation", "test") for n in range(50)}
    assert len(seeds) == 450
    assert seed_for(1, "train", 7) == seed_for(1, "train", 7)
    with pytest.raises(ValueError, match="Expected a seed of at least 0"):
        seed_for(-1, "train")


@dataclass(frozen=True)
class _Inner:
    rate: float = 1.0
    mode: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class _Outer:
    inner: _Inner
    many: tuple[int, ...] = ()
    maybe: str | None = None


def test_parse_converts_only_int_to_float() -> None:
    parsed = parse(_Outer, {"inner": {"rate": 3}, "many": [1, 2]})
    assert parsed == _Outer(_Inner(3.0), (1, 2))
    assert plain(parsed) == {"inner": {"rate": 3.0, "mode": "a"}, "many": [1, 2]}
    assert parse(_Inner, {"rate": "3e-3"}).rate == 3e-3  # YAML 1.1 reads it as text
    with pytest.raises(InputError, match=r"many\[1\]: Expected a whole number"):
        parse(_Outer, {"inner": {}, "many": [1, "x"]})
    with pytest.raises(InputError, match="Expected a finite number"):
        parse(_Inner, {"rate": float("nan")})


def test_a_new_length_replaces_the_old() -> None:
    recipe = read_recipe("paper-map-1").with_changes(steps=5)
    assert (recipe.steps, recipe.epochs) == (5, None)
    assert isinstance(recipe, Recipe)
