"""Recipes: short YAML files that describe a training run completely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from fgnn.decoding.learned import DecoderSize
from fgnn.errors import InputError
from fgnn.files import is_file
from fgnn.models import NetworkConfig, PointConfig
from fgnn.names import as_file_name
from fgnn.schema import Between, check_fields, parse
from fgnn.tasks.data_settings import Data
from fgnn.tasks.settings import Optimiser as Optimiser
from fgnn.tasks.settings import Schedule as Schedule
from fgnn.tasks.settings import TrainingSettings
from fgnn.tasks.settings import recipe_yaml as recipe_yaml
from fgnn.tasks.variation import Variation
from fgnn.tasks.yaml_file import read_yaml


@dataclass(frozen=True)
class Soft:
    r"""Soft targets, from the gap between the best assignment with a one and the best with a zero:

    .. math:: q_i(1) = (1 - w)\, [x^*_i = 1] + w\, \sigma(d_i / T), \qquad
        d_i = \max_{x : x_i = 1} \theta(x) - \max_{x : x_i = 0} \theta(x)

    Near a tie a hard label asks for certainty that nothing supports; the gap measures the distance from the tie.
    ``weight`` is w, ``temperature`` T, in units of the models' scores.
    """

    weight: Annotated[float, Between(0, 1, above=True)] = 1.0
    temperature: Annotated[float, Between(1e-6, 1e6)] = 0.05

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainingSettings):
    """One training run: its settings, its data, and ``network`` (graphical models), ``points`` or ``decoder`` (codes).

    ``augment`` changes the clouds of every batch at random; ``variation`` says how shapes and rooms are changed.
    """

    data: Data
    network: NetworkConfig = field(default_factory=NetworkConfig)
    points: PointConfig = field(default_factory=PointConfig)
    decoder: DecoderSize = field(default_factory=DecoderSize)
    augment: bool = False
    variation: Variation = field(default_factory=Variation)
    label_smoothing: Annotated[float, Between(0, 1, below=True)] = 0.0
    soft: Soft | None = None
    validation: Annotated[int, Between(1, 10**7)] = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and not self.data.finite:
            raise ValueError("Expected data.instances for epochs (endless data has none)")
        if self.schedule.name == "exponential" and not self.data.finite:
            raise ValueError("Expected data.instances for an exponential schedule (its factor applies per epoch)")
        if self.soft is not None and self.data.chain is None:
            raise ValueError("Expected data.chain for soft targets (gaps are computed for chains)")

    @property
    def ignored(self) -> frozenset[str]:
        """The settings that the task does not read; files and cards leave them out."""
        models, clouds = ("network", "soft"), ("points", "augment", "variation", "label_smoothing")
        if self.data.samples is not None:
            return frozenset((*models, *clouds, "decoder", "validation"))
        if self.data.codes is not None:
            return frozenset((*models, *clouds))
        return frozenset((*(models if self.data.clouds else clouds), "decoder"))


@dataclass(frozen=True)
class TrainedOn:
    """The entry of a card that says what its network was trained on."""

    data: Data


@dataclass(frozen=True)
class TrainedBy:
    """The entry of a card that says how its network was trained."""

    recipe: Recipe


def read_recipe(place: str | Path) -> Recipe:
    """Read a recipe file, or a packaged recipe by name (``paper-map-1``)."""
    path = find_recipe(place)
    values = read_yaml(path)
    recipe = parse(Recipe, values, file=path)
    return recipe if "name" in values else replace(recipe, name=as_file_name(path.stem, recipe.name))


def find_recipe(place: str | Path) -> Path:
    """Return the file of a path or of a packaged recipe's name."""
    path = Path(place)
    if is_file(path):
        return path
    names = recipe_names()
    if str(place) in names:
        return Path(str(files("fgnn.tasks") / "recipes" / f"{place}.yaml"))
    close = get_close_matches(str(place)[:100], names, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else f"; packaged: {', '.join(names)}"
    raise InputError(f"no such recipe file{hint}", file=place)


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes."""
    folder = Path(str(files("fgnn.tasks") / "recipes"))
    return sorted(p.stem for p in folder.glob("*.yaml"))
