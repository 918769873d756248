"""Recipes: short YAML files that describe a training run completely."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from fgnn.decoding.learned import DecoderSize
from fgnn.errors import InputError
from fgnn.files import is_file
from fgnn.models import NetworkConfig, PointConfig
from fgnn.names import as_file_name
from fgnn.points.segment_pieces import Cut, Growth, Neighbours, PiecePoints, Thinning, Windows
from fgnn.schema import Between, Extent, Label, Length, PathText, Positive, Share, check_fields, parse
from fgnn.tasks.settings import Optimiser as Optimiser
from fgnn.tasks.settings import Schedule as Schedule
from fgnn.tasks.settings import TrainingSettings
from fgnn.tasks.settings import recipe_yaml as recipe_yaml
from fgnn.tasks.variation import Variation
from fgnn.tasks.yaml_file import read_yaml


@dataclass(frozen=True)
class ChainData:
    """Chains with window budgets (section 4.1), of several kinds mixed evenly (named twice: twice as often)."""

    kinds: Annotated[tuple[Annotated[int, Between(1, 3)], ...], Length(100, 1)] = (1,)
    length: Annotated[int, Between(2, 10**5)] = 30
    window: Annotated[int, Between(2, 1000)] = 8
    budget: Annotated[int, Between(1, 1000)] = 5

    def __post_init__(self) -> None:
        check_fields(self)
        if not 2 <= self.window <= self.length:
            raise ValueError(f"Expected a window between 2 and the length {self.length} (got {self.window})")


Side = Annotated[int, Between(1, 1000)]  # of a grid


@dataclass(frozen=True)
class GridData:
    """Grids with random pairwise terms and budgets over patches, exactly labelled."""

    height: Side = 8
    width: Side = 8
    patch: Annotated[tuple[Side, ...], Length(2, 2)] = (2, 3)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.height < self.patch[0] or self.width < self.patch[1]:
            raise ValueError(
                f"Expected a grid at least as large as its patches of {self.patch[0]} x {self.patch[1]} "
                f"(got {self.height} x {self.width})"
            )


Points = Annotated[int, Between(1, 1 << 20)]  # of a shape


@dataclass(frozen=True)
class ShapeData:
    """ShapeNet-Part in ``root``, in any of its layouts: the training splits and the validation split.

    The paper trains on ``train`` and selects on ``val``; several published networks train on both.
    """

    root: PathText
    points: Points = 2048
    splits: Annotated[tuple[Literal["train", "val"], ...], Length(2)] = ("train",)
    held_out: Literal["val", "test"] = "val"

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.splits or self.held_out in self.splits:
            raise ValueError(f"Expected splits to train on, without the one held out (got {list(self.splits)})")


@dataclass(frozen=True)
class RoomData:
    """S3DIS blocks (the HDF5 release) in ``root``: the fold that tests on ``area``."""

    root: PathText
    area: Annotated[int, Between(1, 6)] = 5

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class ScanData:
    """A folder of labelled scans, cut into tiles of ``size`` with pieces of ``points`` points.

    Args:
        classes: File in the folder with one class per line (``name`` or ``name: value …``).
        field: The field that holds the labels.
        heights: Windows of further features (see `fgnn.points.heights`), as ``slopes``.
        grow: How many times wider tiles may be in sparse scans.
        thin: Side of the voxels of which the lowest point is labelled; 0 labels every point.
        shapes: Numbers of neighbours whose shape is a feature (see `fgnn.points.neighbourhood`).
        echoes: Use intensity and returns where a scan has them.
        copies: Altered versions of each scan that are also trained on.
        stray: Label of points that the copies move far up or down.
        sparsest: Points per square unit down to which the copies are thinned; by default to a third.
        held_out: Files that are never trained on; by default the last.
    """

    root: PathText
    classes: PathText = "classes.txt"
    field: Label = "label"
    size: Extent = 20.0
    points: PiecePoints = 4096
    scale: Extent = 10.0
    colour: bool = False
    heights: Windows = ()
    slopes: Windows = ()
    grow: Growth = 1.0
    thin: Thinning = 0.0
    shapes: Neighbours = ()
    echoes: bool = False
    copies: Annotated[int, Between(0, 1000)] = 0
    stray: Annotated[int, Between(0, 255)] | None = None
    sparsest: Positive | None = None
    held_out: Annotated[tuple[PathText, ...], Length(10**5)] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        if list(self.heights) != sorted(self.heights):
            raise ValueError(f"Expected heights as growing windows (got {list(self.heights)})")

    def cut(self) -> Cut:
        """Return how scans are cut, for training and for labelling."""
        return Cut.of(self)


@dataclass(frozen=True)
class SampleData:
    """Samples of the variables of a model file, whose potentials are learned.

    Args:
        model: The model: its scopes, its constraints and the potentials to begin with.
        file: The samples: a text of integers with one assignment a line, or a .npy array.
        learn: A table for ``each`` factor, or one ``shared`` by all factors of a shape.
        unaries: Whether to learn a score for every state of every variable too.
        loss: ``likelihood``, where elimination or sum-product can compute log Z, or ``pseudo-likelihood``.
        keep: Share of the tables that a conditional of the pseudo-likelihood sees (E-PLL); 1 is the plain one.
    """

    model: PathText
    file: PathText
    learn: Literal["each", "shared"] = "each"
    unaries: bool = True
    loss: Literal["likelihood", "pseudo-likelihood"] = "likelihood"
    keep: Annotated[float, Between(0, 1, above=True)] = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


Decibels = Annotated[float, Between(-20, 40)]


@dataclass(frozen=True)
class CodeData:
    """Words of parity-check codes over a noisy channel, for a `LearnedDecoder` that serves all of them.

    Args:
        files: The codes (see `fgnn.decoding.read_code`).
        low: The least E_b / N_0 in decibels; every word draws its own.
        high: The largest.
        burst: Standard deviation of bursts, which hit 5 % of the bits; 0 for none.
        iterations: Of the decoder while it is trained.
        hard: Share of the words on which plain belief propagation fails.
    """

    files: Annotated[tuple[PathText, ...], Length(100, 1)]
    low: Decibels = 2.0
    high: Decibels = 4.0
    burst: Annotated[float, Between(0, 100)] = 0.0
    iterations: Annotated[int, Between(1, 1000)] = 12
    hard: Share = 0.5

    def __post_init__(self) -> None:
        check_fields(self)
        if self.low > self.high:
            raise ValueError(f"Expected low up to high (got {self.low} and {self.high})")


_FAMILIES = ("chain", "grid", "folder", "shapes", "rooms", "scans", "samples", "codes")


@dataclass(frozen=True)
class Data:
    """Where instances come from: exactly one family. ``instances`` makes it a fixed seeded set, not endless.

    ``label_seconds`` limits the search for the label of each model in a folder: the best assignment found.
    """

    chain: ChainData | None = None
    grid: GridData | None = None
    folder: PathText | None = None
    shapes: ShapeData | None = None
    rooms: RoomData | None = None
    scans: ScanData | None = None
    samples: SampleData | None = None
    codes: CodeData | None = None
    instances: Annotated[int, Between(1, 10**8)] | None = None
    label_seconds: Annotated[float, Between(0.01, 10**6)] | None = None

    @property
    def clouds(self) -> bool:
        """True for point clouds."""
        return any(part is not None for part in (self.shapes, self.rooms, self.scans))

    @property
    def finite(self) -> bool:
        """True if there are epochs."""
        return self.instances is not None or self.folder is not None or self.clouds or self.samples is not None

    def __post_init__(self) -> None:
        check_fields(self)
        families = [name for name in _FAMILIES if getattr(self, name) is not None]
        if len(families) != 1:
            raise ValueError(f"Expected one of {', '.join(_FAMILIES)} (got {', '.join(families) or 'none'})")


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
