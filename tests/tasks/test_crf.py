"""Potentials learned from samples: a model file and assignments in, a model file out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn import GraphicalModel, marginals, read_model, write_model
from fgnn.errors import InputError
from fgnn.infer import sample
from fgnn.tasks.crf import read_samples
from fgnn.tasks.data_settings import Data, SampleData
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.settings import Optimiser, Schedule
from fgnn.train.run import run


def chain(scale: float = 1.0) -> GraphicalModel:
    """A chain of five variables with a budget; no potentials if ``scale`` is 0."""
    rng = np.random.default_rng(0)
    model = GraphicalModel([2] * 5)
    model.add_unaries(scale * rng.normal(size=10))
    model.add_tables([(i, i + 1) for i in range(4)], scale * rng.normal(size=(4, 2, 2)))
    model.add_budget(range(5), at_most=3)
    return model


def recipe(folder: Path, **options: object) -> Recipe:
    samples = SampleData(model=str(folder / "template.fgm"), file=str(folder / "samples.npy"), **options)  # type: ignore[arg-type]
    return Recipe(
        name="free",
        data=Data(samples=samples),
        optimiser=Optimiser(rate=0.05),
        schedule=Schedule(name="cosine"),
        batch=500,
        epochs=25,
        log_every=10,
        checkpoint_every=1000,
    )


@pytest.mark.parametrize("options", [{}, {"loss": "pseudo-likelihood", "keep": 1.0}])
def test_training_on_samples_recovers_the_distribution(tmp_path: Path, options: dict[str, object]) -> None:
    write_model(chain(0.0), tmp_path / "template.fgm")
    np.save(tmp_path / "samples.npy", sample(chain(), 4000, seed=0))
    _, folder = run(recipe(tmp_path, **options), tmp_path / "run", device="cpu")
    learned = read_model(folder.path / "model.fgm")
    assert len(learned.budget_groups) == 1
    ours, true = marginals(learned, tables=True), marginals(chain(), tables=True)
    for p, q in zip(ours.variables, true.variables, strict=True):
        np.testing.assert_allclose(p, q, atol=0.04)


def test_samples_are_text_or_an_array_and_fit_the_model(tmp_path: Path) -> None:
    model = GraphicalModel([2, 3])
    text = tmp_path / "samples.txt"
    text.write_text("0, 2\n1 0\n")
    assert read_samples(text, model).tolist() == [[0, 2], [1, 0]]
    for content, said in (
        ("0 3\n1 0\n", "sample 0"),
        ("0\n1\n", "2 variables"),
        ("a b\n", "integers"),
        ("0 0\n", "2 samples"),
    ):
        text.write_text(content)
        with pytest.raises(InputError, match=said):
            read_samples(text, model)
