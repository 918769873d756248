"""The part of a recipe that says where its data come from, one class per family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fgnn.points.segment_pieces import Cut, Growth, Neighbours, PiecePoints, Thinning, Windows
from fgnn.schema import Between, Extent, Label, Length, PathText, Positive, check_fields


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
    """

    files: Annotated[tuple[PathText, ...], Length(100, 1)]
    low: Decibels = 2.0
    high: Decibels = 4.0
    burst: Annotated[float, Between(0, 100)] = 0.0
    iterations: Annotated[int, Between(1, 1000)] = 12

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
