"""Training jobs that the scripts share: a recipe with changes, trained or continued, and what became of it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import typer

from fgnn.errors import InputError
from fgnn.schema import parse
from fgnn.tasks import Recipe
from fgnn.tasks.recipe import find_recipe
from fgnn.tasks.settings import LENGTHS
from fgnn.tasks.yaml_file import parse_yaml, read_yaml
from fgnn.train import RunFolder
from fgnn.train.run import run

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="A setting of the recipe, such as points.bases=8.")]


@dataclass
class Outcome:
    """What became of a job."""

    name: str
    seconds: float = 0.0
    steps: int = 0
    finished: bool = False
    error: str = ""

    def summary(self) -> str:
        """Return one line."""
        if self.error:
            return f"{self.name}: {self.error} ({self.seconds:.0f} s)"
        return f"{self.name}: {self.steps} steps, {self.seconds:.0f} s{'' if self.finished else ', cut short'}"


def changed_recipe(place: str, name: str, changes: Sequence[str]) -> Recipe:
    """Read a recipe and apply changes written ``path.to.key=value``, with the value in YAML.

    An empty value removes the key; a new length replaces the recipe's own.
    """
    path = find_recipe(place)
    values = read_yaml(path)
    parsed = [change.partition("=") for change in changes]
    if any(keys.strip() in LENGTHS for keys, _, _ in parsed):
        values = {k: v for k, v in values.items() if k not in LENGTHS}
    for keys, equals, text in parsed:
        parent: Any = values
        *above, last = keys.strip().split(".")
        for key in above:
            parent = parent.setdefault(key, {}) if isinstance(parent, dict) else None
        if not equals or not isinstance(parent, dict):
            raise InputError(f"Expected path.to.key=value (got {keys + equals + text!r})", file=path)
        parent[last] = parse_yaml(text, file=path, place=keys.strip())
        if parent[last] is None:
            del parent[last]
    return replace(parse(Recipe, values, file=path), name=name)


@contextmanager
def attempt(outcome: Outcome) -> Iterator[None]:
    """Record an error in the outcome instead of raising it; count the seconds and release what the block used."""
    start = time.monotonic()
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        outcome.error = outcome.error or f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        outcome.seconds += time.monotonic() - start
        torch.compiler.reset()  # compiled blocks keep what they were compiled for
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def train_job(outcome: Outcome, recipe: Recipe, folder: RunFolder, **options: Any) -> None:
    """Train, or continue from the folder's checkpoint."""
    resume = folder.checkpoint.is_file()
    if not resume:
        folder.config.unlink(missing_ok=True)  # of a run that ended before its first checkpoint
    try:
        state, _ = run(folder.path if resume else recipe, folder.path, resume=resume, **options)
        outcome.finished = state.finished
    finally:
        lines = folder.lines()
        outcome.steps = lines[-1]["step"] if lines else 0
