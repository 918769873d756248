"""`fgnn reproduce table2`: rooms of S3DIS, six folds pooled, ours beside the paper's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.data import Room, load_blocks
from fgnn.data.s3dis import AREAS, CLASSES, cut_rooms, rooms, save_blocks
from fgnn.errors import InputError
from fgnn.models.points.segmenter import load_point_network
from fgnn.points import scene_score
from fgnn.points.blocks import POINTS
from fgnn.report import Page, Table
from fgnn.reproduce.experiment import Output, Setting, is_trained, train_run, write_outputs
from fgnn.reproduce.paper import NAMES, TABLE2, TABLE2_BASELINE
from fgnn.runtime.progress import Log
from fgnn.tasks import Recipe, read_recipe
from fgnn.tasks.data_settings import RoomData
from fgnn.tasks.room_scores import PROTOCOLS, Protocol, labeller, score_rooms
from fgnn.weights import load_weights

_QUICK_STEPS, _QUICK_POINTS = 10, 512
_BLOCKS = "indoor3d_sem_seg_hdf5_data"


@dataclass(frozen=True)
class RoomRow:
    """One network by one protocol, over the folds with data."""

    network: str
    protocol: Protocol
    areas: tuple[int, ...]
    accuracy: float
    mean_iou: float
    iou: dict[str, float | None]

    @classmethod
    def of(cls, network: str, protocol: Protocol, areas: tuple[int, ...], counts: NDArray[np.int64]) -> RoomRow:
        score = scene_score(counts)
        iou = {name: None if v != v else float(v) for name, v in zip(CLASSES, score.iou, strict=True)}
        return cls(network, protocol, areas, score.accuracy, score.mean_iou, iou)


def reproduce_table2(setting: Setting, out: str | Path, log: Log, points: int | None = None) -> Output:
    """Train each fold that is not trained yet, label its rooms by all three protocols, and pool the counts.

    A quick run uses few rooms, points and steps; its numbers are meaningless.
    """
    start = time.perf_counter()
    points = points or (_QUICK_POINTS if setting.quick else POINTS)
    if setting.data is None:
        raise InputError("Expected --data with the folder of S3DIS: rooms, raw or collected")
    by_area = {area: some for area in AREAS if (some := _rooms(setting, area))}
    if len(by_area) < 2:
        raise InputError(f"Expected rooms of two or more areas, Area_k (got {len(by_area)})", file=setting.data)
    folder = _blocks(setting, by_area, points, log)
    names = [n for n in NAMES if n == "fgnn" or all(is_trained(_fold(setting, n, a)) for a in by_area)]
    rows = []
    for name in names:
        counts = {p: np.zeros((len(CLASSES), len(CLASSES)), np.int64) for p in PROTOCOLS}
        for area, some in by_area.items():
            run = _fold(setting, name, area)
            if not is_trained(run):
                log(f"{NAMES[name]}: training the fold that tests on area {area}")
                train_run(fold_recipe(name, area, folder, setting.quick), run, setting)
            network = load_point_network(load_weights(run / "last.safetensors"), setting.device)
            label = labeller(network, half=torch.device(setting.device).type == "cuda")
            for protocol in PROTOCOLS:
                log(f"{NAMES[name]}, fold {area}: {protocol}, {len(some)} rooms")
                counts[protocol] += score_rooms(label, some, protocol, seed=setting.seed, points=points)
        rows += [RoomRow.of(name, protocol, tuple(by_area), c) for protocol, c in counts.items()]
    tables = [main_table(rows), class_table(rows)]
    page = _page(rows, tables, setting.quick)
    return write_outputs(Output("table2", setting, rows, tables, page, time.perf_counter() - start), out)


def _rooms(setting: Setting, area: int) -> list[Room]:
    """Return the rooms of an area; in a quick run the first two."""
    try:
        whole = list(rooms(str(setting.data), (area,)))
    except InputError as error:
        if "Expected rooms of" in str(error):
            return []
        raise
    return whole[:2] if setting.quick else whole


def _blocks(setting: Setting, by_area: dict[int, list[Room]], points: int, log: Log) -> Path:
    """Return the folder of training blocks: those of the release beside the rooms, else cut from the rooms once."""
    released = Path(str(setting.data)) / _BLOCKS
    if released.is_dir() and not setting.quick:
        return released
    folder = setting.room_runs / ("quick" if setting.quick else "full") / _BLOCKS
    every = [room for some in by_area.values() for room in some]
    if (folder / "room_filelist.txt").is_file() and set(load_blocks(folder).room) == {room.name for room in every}:
        return folder
    log("cutting rooms into blocks")
    blocks = cut_rooms(every, 0.5, seed=setting.seed, points=points)
    if not len(blocks.room):
        raise InputError("Expected blocks of at least 100 points (got none)", file=setting.data)
    save_blocks(blocks, folder)
    return folder


def _fold(setting: Setting, name: str, area: int) -> Path:
    return setting.room_runs / ("quick" if setting.quick else "full") / f"{name}-{area}"


def fold_recipe(name: str, area: int, blocks: Path, quick: bool) -> Recipe:
    """Return the packaged recipe for rooms on one fold; a quick run takes a few steps with small batches."""
    recipe = read_recipe(f"rooms-{name}")
    recipe = replace(recipe, name=f"{name}-{area}", data=replace(recipe.data, rooms=RoomData(str(blocks), area)))
    if not quick:
        return recipe
    return recipe.with_changes(steps=_QUICK_STEPS, batch=2, log_every=10, checkpoint_every=20)


def main_table(rows: Sequence[RoomRow]) -> Table:
    """Accuracy and mean IoU, ours by every protocol and the paper's."""
    lines: list[list[str]] = []
    strong: list[int] = []
    for name, printed in NAMES.items():
        for row in rows:
            if row.network == name:
                strong += [len(lines)] if name == "fgnn" else []
                lines.append(
                    [f"{printed}, ours, {row.protocol}", f"{100 * row.accuracy:.1f}", f"{100 * row.mean_iou:.1f}"]
                )
        accuracy, mean = TABLE2[printed][:2]
        lines.append([f"{printed}, as the paper prints", f"{accuracy:.1f}", f"{mean:.1f}"])
    name, baseline, mean = TABLE2_BASELINE
    lines.append([f"{name}, as the paper prints", f"{baseline:.1f}", f"{mean:.1f}"])
    folds = ", ".join(str(a) for a in rows[0].areas)
    caption = f"Rooms, percent; ours: counts pooled over the folds that test on areas {folds}"
    return Table(["", "overall accuracy", "mean IoU"], lines, caption, frozenset(strong))


def class_table(rows: Sequence[RoomRow]) -> Table:
    """IoU of each class."""
    lines = []
    for name, printed in NAMES.items():
        for row in rows:
            if row.network == name:
                ious = ("–" if v is None else f"{100 * v:.1f}" for v in (row.iou[c] for c in CLASSES))
                lines.append([f"{printed}, ours, {row.protocol}", *ious])
        paper = TABLE2[printed][2:]
        lines.append([f"{printed}, the paper", *("–" if v is None else f"{v:.1f}" for v in paper)])
    return Table(["IoU %", *CLASSES], lines, "By class; – where a class neither occurs nor is predicted")


def _page(rows: Sequence[RoomRow], tables: Sequence[Table], quick: bool) -> Page:
    page = Page("Rooms: S3DIS, ours beside the paper's")
    page.text(
        "Fold k tests on area k and trains on the others; counts are pooled over rooms and folds before computing IoU. "
        "pn-sampled draws 4,096 points from every block of one metre, with repeats, as most published results do; "
        "all-points labels every point once; voted takes the majority of three passes over overlapping blocks."
    )
    if quick:
        page.text(
            f"A quick run: {_QUICK_STEPS} training steps per fold, on two rooms of each area; meaningless numbers."
        )
    if set(rows[0].areas) != set(AREAS):
        page.text("Some of the six areas are missing: these numbers are not those of the benchmark.")
    for table in tables:
        page.table(table)
    page.text(
        "The paper gives PointNet's accuracy as 81.1 and DGCNN's as 84.1 in its text, 78.5 and 84.4 in its "
        "supplement; those of the supplement are shown."
    )
    return page
