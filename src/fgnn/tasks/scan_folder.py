"""A recipe for a folder of labelled scans, with settings inferred from the files."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from fgnn.errors import InputError
from fgnn.models import PointConfig
from fgnn.names import as_file_name
from fgnn.points import open_cloud
from fgnn.points.cloud import FORMATS, CloudReader
from fgnn.schema import parse
from fgnn.tasks.data_settings import Data, ScanData
from fgnn.tasks.recipe import Recipe
from fgnn.tasks.settings import Optimiser, Schedule
from fgnn.weights import load_weights

CLASSES = "classes.txt"
# Usual names of the label field, the likeliest first.
FIELDS = ("label", "classification", "class", "labels", "scalar_label", "scalar_Label", "scalar_Classification")
_POINTS = 4096
# Windows of height features, as shares of a tile's side, for tiles wide enough to hold more than a room.
_WINDOWS, _OUTDOORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2), 20.0
# Altered copies of each scan in fine-tuning.
_COPIES = 3
# Smaller than the paper's network, to train on a CPU; a recipe file can ask for the paper's.
NOTATION = "Input - FGNN(32) - FC(64) - Res[FC(32) - FGNN(32) - FC(64)] - FC(128) - GlobalPooling - FC(128) - FC(N)"


def is_scan_folder(folder: str | Path) -> bool:
    """True if a folder holds scans with a classes file, not models."""
    return (Path(folder) / CLASSES).is_file()


def scan_files(folder: Path, classes: str) -> list[Path]:
    """Return the scans of a folder, at least two, without its classes file."""
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in FORMATS and p.name != Path(classes).name)
    if len(files) < 2:
        what = f"Expected two or more labelled scans, one of them to hold out (got {len(files)})"
        raise InputError(what, file=folder)
    return files


def scan_recipe(folder: str | Path, begin_with: str | None = None) -> Recipe:
    """Return a recipe with label field, tile size and colour inferred from the files; the last file is held out.

    Args:
        begin_with: Weights to fine-tune: the network and the features are theirs.
    """
    root = Path(folder)
    readers = [open_cloud(p) for p in scan_files(root, CLASSES)]
    field = next((name for name in FIELDS if all(name in r.header.fields for r in readers)), None)
    if field is None:
        fields = ", ".join(readers[0].header.fields) or "none"
        raise InputError(
            f"Expected a field {' or '.join(FIELDS[:3])} with labels in every scan (the first has: {fields}); "
            "name another in a recipe's data.scans.field",
            file=root,
        )
    if begin_with is not None:
        return _fine_tuning(folder, field, begin_with)
    colour = all({"red", "green", "blue"} <= set(r.header.fields) for r in readers)
    size = tile_size(readers)
    return Recipe(
        name=as_file_name(root.resolve().name, "scans"),
        data=Data(
            scans=ScanData(
                str(folder), field=field, size=size, points=_POINTS, scale=size / 4, colour=colour,
                heights=tuple(size * share for share in _WINDOWS) if size >= _OUTDOORS else (),
            )
        ),
        points=PointConfig(k=16, bases=8, reach=0.1, notation=NOTATION),
        optimiser=Optimiser(name="adamw", rate=2e-3, weight_decay=1e-3, clip=1.0),
        schedule=Schedule(name="cosine", warmup=20),
        batch=4,
        epochs=40,
        augment=True,
        log_every=5,
        checkpoint_every=100,
        validate_every=50,
    )  # fmt: skip


def _fine_tuning(folder: str | Path, field: str, begin_with: str) -> Recipe:
    """Return a short run from other weights, with altered copies of the few scans there are."""
    card = load_weights(begin_with).card
    scans = (card.get("data") or {}).get("scans")
    if card.task != "points" or not scans:
        raise InputError(f"Expected weights trained on scans (got {begin_with!r})", file=begin_with)
    known = {f.name for f in fields(ScanData)} - {"root", "field", "classes", "held_out", "copies", "stray"}
    kept = {name: value for name, value in scans.items() if name in known}
    values = {**kept, "root": str(folder), "field": field, "copies": _COPIES}
    return Recipe(
        name=as_file_name(Path(folder).resolve().name, "scans"),
        data=Data(scans=parse(ScanData, values, file=begin_with, place="data.scans")),
        points=parse(PointConfig, card["network"], file=begin_with, place="network"),
        start_from=begin_with,
        optimiser=Optimiser(name="adamw", rate=1e-3, weight_decay=1e-2, clip=1.0),
        schedule=Schedule(name="cosine", warmup=10),
        batch=4,
        steps=200,
        augment=True,
        log_every=5,
        checkpoint_every=50,
        validate_every=25,
    )


def tile_size(readers: list[CloudReader]) -> float:
    """Return the side of a square that holds the points of a piece on average, to two digits."""
    points, area = 0, 0.0
    for reader in readers:
        low, high = np.full(2, np.inf), np.full(2, -np.inf)
        for part in reader.chunks():
            xy = part.xyz[part.valid, :2]
            if len(xy):
                low, high, points = np.minimum(low, xy.min(0)), np.maximum(high, xy.max(0)), points + len(xy)
        if (high > low).all():
            area += float(np.prod(high - low))
    if not points or area <= 0:
        return 1.0
    side = float(np.sqrt(_POINTS * area / points))
    return float(f"{side:.2g}")
