"""`fgnn reproduce table3`: part segmentation on ShapeNet-Part, ours beside the paper's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fgnn.data import Shapes
from fgnn.data.shapenet import CATEGORIES
from fgnn.errors import InputError
from fgnn.models.points.segmenter import PointCard, load_point_network
from fgnn.report import Page, Table, bars
from fgnn.reproduce.experiment import Origin, Output, Setting, records, write_outputs
from fgnn.reproduce.paper import TABLE3
from fgnn.runtime.progress import Log
from fgnn.tasks import read_recipe
from fgnn.tasks.recipe import TrainedOn
from fgnn.tasks.shapes import ShapeTable, draw_shapes, score_shapes, split_shapes
from fgnn.tasks.variation import variation_of
from fgnn.weights import find_weights, load_weights, weight_names

_QUICK = 64  # shapes of a quick run
_VOTES = 10
_SHORT = ("Aero", "Bag", "Cap", "Car", "Chair", "Ear", "Guitar", "Knife", "Lamp", "Laptop", "Motor", "Mug", "Pistol",
          "Rocket", "Skate", "Table")  # fmt: skip


# Rows of ours by the name of weights, run or record, ``shapes-NAME``, with the network of the paper beside them.
ROWS: dict[str, tuple[str, str]] = {
    "paper": ("FGNN", "FGNN, ours by the paper's protocol"),
    "fgnn-first": ("FGNN", "FGNN, ours after one cycle"),
    "fgnn": ("FGNN", "FGNN, ours"),
    "hierarchical": ("FGNN", "FGNN in stages, ours"),
    "dgcnn": ("DGCNN", "DGCNN, ours"),
    "pointnet": ("PointNet", "PointNet, ours"),
    "pointcnn": ("PointCNN", "PointCNN, ours"),
}


@dataclass(frozen=True)
class ShapeRow:
    """One network, a key of `ROWS`, by one protocol, and where its weights come from."""

    network: str
    table: ShapeTable
    card: dict[str, Any]
    origin: Origin = "measured"


def reproduce_table3(setting: Setting, out: str | Path, log: Log) -> Output:
    """Score the available networks on the official test list; in a quick run on a few drawn from it."""
    start = time.perf_counter()
    if setting.data is None:
        raise InputError("Expected --data with the folder of ShapeNet-Part")
    shapes = split_shapes(setting.data, "test")
    if setting.quick or setting.instances < len(shapes):
        shapes = draw_shapes(shapes, min(setting.instances, _QUICK) if setting.quick else setting.instances)
    rows: list[ShapeRow] = []
    for name in ROWS:
        rows += _rows(setting, name, shapes, log)
    if not rows:
        raise InputError(
            "no weights and no record of any network; train one with: "
            f"python -m tools.train_shapes --data {setting.data} fgnn"
        )
    tables = [main_table(rows), difference_table(rows), protocol_table(rows)]
    page = _page(setting, rows, tables, len(shapes))
    return write_outputs(Output("table3", setting, rows, tables, page, time.perf_counter() - start), out)


def _rows(setting: Setting, name: str, shapes: Shapes, log: Log) -> list[ShapeRow]:
    """Return measured rows if there are weights, else recorded ones, else none."""
    place = _weights(setting, name)
    if place is None:
        record = records().get(f"shapes-{name}")
        if record is None:
            log(f"{ROWS[name][1]} left out: no weights (packaged or in {setting.shape_runs}) and no record")
            return []
        return _recorded(name, record)
    weights = load_weights(place)
    data = weights.card.part(TrainedOn).data.shapes
    if data is None:
        raise InputError("Expected weights of a network on shapes", file=place)
    network = load_point_network(weights, setting.device)
    log(f"{ROWS[name][1]}: {len(shapes)} shapes, weights {place}")
    half = torch.device(setting.device).type == "cuda"
    trained_on = [] if setting.quick else [split_shapes(str(setting.data), s) for s in data.splits]
    votes = 1 if setting.quick else _VOTES
    how: dict[str, Any] = {"votes": votes, "variation": variation_of(weights.card), "half": half, "seed": setting.seed}
    tables = score_shapes(network, shapes, data.points, trained_on, **how)
    measured = [ShapeRow(name, table, _origin(weights.card)) for table in tables]
    # a few shapes say little: show the recorded results of the whole list too
    return measured + (_recorded(name, weights.card) if setting.quick else [])


def _recorded(name: str, card: Any) -> list[ShapeRow]:
    """Return the results on the whole list that a card records."""
    return [ShapeRow(name, ShapeTable(**table), _origin(card), "recorded") for table in card.get("results", [])]


def _weights(setting: Setting, name: str) -> Path | None:
    if setting.run is not None:
        architecture = load_weights(setting.run).card.part(PointCard).network.architecture
        return find_weights(setting.run) if architecture == name else None
    folder = setting.shape_runs / f"shapes-{name}"
    if (folder / "last.safetensors").is_file():
        return folder / "last.safetensors"
    return find_weights(f"shapes-{name}") if f"shapes-{name}" in weight_names() else None


def _origin(card: Any) -> dict[str, Any]:
    keys = ("name", "steps", "epochs", "selected", "finished", "seconds", "hours", "hardware", "command")
    return {key: card[key] for key in keys if key in card}


def recorded_rows() -> list[ShapeRow]:
    """Return the results on the whole test list that cards and records hold; no data is needed."""
    rows = []
    for name in ROWS:
        packaged = f"shapes-{name}" in weight_names()
        card = load_weights(find_weights(f"shapes-{name}")).card if packaged else records().get(f"shapes-{name}")
        rows += _recorded(name, card) if card is not None else []
    return rows


def label_of(row: ShapeRow) -> str:
    """The network with its epochs, those planned if it was cut short, and a star if the result is recorded."""
    _, label = ROWS[row.network]
    if "epochs" in row.card:
        planned = "" if row.card.get("finished", True) else f" of {read_recipe(f'shapes-{row.network}').epochs}"
        label += f", {row.card['epochs']:.1f}{planned} epochs"
    if "selected" in row.card:
        label += f", best {row.card['selected']:.1f}"
    return label + ("*" if row.origin == "recorded" else "")


def main_table(rows: Sequence[ShapeRow]) -> Table:
    """Instance and category mean and every category, ours by one pass and the paper's."""
    lines: list[list[str]] = []
    strong: list[int] = []
    for printed, theirs in TABLE3.items():
        for row in _one_pass(rows, printed):
            strong += [len(lines)] if printed == "FGNN" else []
            shapes = "" if row.origin == "recorded" else f", {row.table.shapes:,} shapes"
            lines.append([f"{label_of(row)}{shapes}", *("–" if v != v else f"{v:.1f}" for v in _percents(row))])
        lines.append([f"{printed}, as the paper prints", *(f"{v:.1f}" for v in _with_category_mean(theirs))])
    caption = (
        "Part segmentation, mIoU in percent: mean over shapes, mean over categories, and every category; "
        "ours by one pass over shapes of the official test list; * recorded earlier"
    )
    return Table(["", "instance mean", "category mean", *_SHORT], lines, caption, frozenset(strong))


def difference_table(rows: Sequence[ShapeRow]) -> Table:
    """Ours minus the paper's for the same network, in points."""
    lines = []
    for printed, theirs in TABLE3.items():
        for row in _one_pass(rows, printed):
            pairs = zip(_percents(row), _with_category_mean(theirs), strict=True)
            lines.append([label_of(row), *("–" if a != a else f"{a - b:+.1f}" for a, b in pairs)])
    heading = ["ours − paper", "instance mean", "category mean", *_SHORT]
    return Table(heading, lines, "Ours minus the paper's, in points of mIoU")


def _one_pass(rows: Sequence[ShapeRow], printed: str) -> list[ShapeRow]:
    return [r for r in rows if ROWS[r.network][0] == printed and r.table.protocol == "one pass"]


def _percents(row: ShapeRow) -> list[float]:
    """Instance mean, category mean and the categories, in percent; NaN for a category without shapes."""
    parts = (row.table.category.get(c, float("nan")) for c in CATEGORIES)
    return [100 * v for v in (row.table.instance, row.table.class_average, *parts)]


def _with_category_mean(printed: Sequence[float]) -> list[float]:
    """Insert the mean over categories, which the paper does not print, after the mean over shapes."""
    return [printed[0], sum(printed[1:]) / len(CATEGORIES), *printed[1:]]


def protocol_table(rows: Sequence[ShapeRow]) -> Table:
    """The same weights by every protocol."""
    lines = [
        [
            label_of(row),
            row.table.protocol,
            *(f"{100 * v:.2f}" for v in (row.table.instance, row.table.class_average, row.table.accuracy)),
            f"{row.table.shapes:,}",
        ]
        for row in rows
    ]
    heading = ["network", "protocol", "instance mean", "category mean", "accuracy", "shapes"]
    return Table(heading, lines, "The same weights by other protocols")


def _page(setting: Setting, rows: Sequence[ShapeRow], tables: Sequence[Table], count: int) -> Page:
    page = Page("Parts of shapes: ShapeNet-Part, ours beside the paper's")
    page.text(
        f"{count:,} shapes of the official test list, 2,048 points each, with coordinates and category as input. The "
        "score of a shape is the mean IoU over all parts of its category, where a part that neither occurs nor is "
        "predicted counts 1; the mean is over shapes. By default one pass chooses among the parts of the category."
    )
    page.text(
        "PointCNN's row follows its own protocol, the mean over the parts that a shape has, which is a different "
        "measure; the paper trained it with Gaussian noise of variance 0.001² on coordinates. The published networks "
        "were trained for 200 epochs or more, ours for as many as the rows state: compare only networks with similar "
        "training."
    )
    page.table(tables[0])
    one = {r.network: r.table for r in rows if r.table.protocol == "one pass"}  # the whole list, if both are there
    series: dict[str, list[float | None]] = {
        ROWS[n][1]: [100 * t.category[c] if c in t.category else None for c in CATEGORIES] for n, t in one.items()
    }
    series["FGNN, the paper's"] = list(TABLE3["FGNN"][1:])
    page.picture(bars(list(_SHORT), series, "mIoU of a category's shapes, %"), "mIoU by category")
    page.table(tables[1])
    page.heading("Protocols")
    page.table(tables[2])
    page.text(
        "Some shapes are in several of the official lists; one row leaves out test shapes that were also trained on. "
        "Voted passes scale, shift and mirror the shape as in training."
    )
    page.heading("Where the weights come from")
    for name, card in {r.network: r.card for r in rows}.items():
        page.values(ROWS[name][1], card)
    if any(r.origin == "recorded" for r in rows):
        page.text("* recorded when the network was trained, not measured in this run.")
    return page
