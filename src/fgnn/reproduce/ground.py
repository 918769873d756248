"""`fgnn reproduce ground`: the ground filter on the ISPRS samples, beside classical filters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fgnn.data.ground import FOLDS, GROUND, SAMPLES, read_samples
from fgnn.errors import InputError
from fgnn.points import Cloud, ground_score, read_cloud
from fgnn.points.ground import GROUND_FILTERS
from fgnn.points.metrics import GroundScore
from fgnn.report import Page, Table
from fgnn.reproduce.experiment import Origin, Output, Setting, write_outputs
from fgnn.runtime.progress import Log
from fgnn.schema import convert
from fgnn.tasks.ground_scores import NAME, filter_samples
from fgnn.tasks.recipe import TrainedOn
from fgnn.weights import Card
from fgnn.weights.cards import read_card

_PACKED = "isprs_filtertest_ground.npz"

# Mean total error over the fifteen samples, and mean kappa if published, both in percent.
PUBLISHED: tuple[tuple[str, float | None, float | None, str], ...] = (
    ("SMRF, parameters tuned for each sample", 2.97, 90.02, "Pingel, Clarke and McBride 2013"),
    ("SMRF, one set of parameters", None, 85.4, "Pingel, Clarke and McBride 2013"),
)


@dataclass(frozen=True)
class GroundRow:
    """A filter on one sample; ``recorded`` if the card holds the result, from another fold."""

    filter: str
    sample: str
    score: GroundScore
    origin: Origin


def _recorded(card: Card) -> dict[str, GroundScore]:
    """The results of the other folds that a card records."""
    folds = card.get("cross_validation")
    samples = folds.get("samples", {}) if isinstance(folds, dict) else {}
    scores: dict[str, GroundScore] = convert(dict[str, GroundScore], samples, card.file, "cross_validation.samples")
    return scores


def reproduce_ground(setting: Setting, out: str | Path, log: Log) -> Output:
    """Filter the samples that the weights held out; the results of the other folds are on the card."""
    start = time.perf_counter()
    if setting.data is None:
        raise InputError(f"Expected --data with the folder of {_PACKED} (or of samp11.npz, samp12.npz, …)")
    place = setting.run or NAME
    card = read_card(place)
    scans = card.part(TrainedOn).data.scans
    held_out = [name for name in SAMPLES if scans is not None and f"{name}.npz" in scans.held_out]
    if not held_out:
        raise InputError("Expected weights that held out samples of the ISPRS test", file=place)
    clouds = samples_in(setting.data)
    scores = filter_samples(place, {name: clouds[name] for name in held_out}, setting.device, log)
    rows = [GroundRow("fgnn", name, score, "measured") for name, score in scores.items()]
    others = _recorded(card)
    rows += [GroundRow("fgnn", name, score, "recorded") for name, score in others.items() if name not in scores]
    for name, cloud in clouds.items():
        for method, ground_filter in GROUND_FILTERS.items():
            score = ground_score(cloud.fields["classification"] == GROUND, ground_filter(cloud.xyz))
            rows.append(GroundRow(method, name, score, "measured"))
        shown = (f"{row.filter} {100 * row.score.total:.2f} %" for row in rows[-len(GROUND_FILTERS) :])
        log(f"{name}: {', '.join(shown)}")
    tables = [sample_table(rows), mean_table(rows)]
    return write_outputs(Output("ground", setting, rows, tables, _page(tables), time.perf_counter() - start), out)


def samples_in(folder: str | Path) -> dict[str, Cloud]:
    """Return the fifteen samples, from one packed file or from one file each."""
    root = Path(folder)
    for place in (root / _PACKED, root / "scans" / _PACKED):
        if place.is_file():
            return read_samples(place)
    if all((root / f"{name}.npz").is_file() for name in SAMPLES):
        return {name: read_cloud(root / f"{name}.npz") for name in SAMPLES}
    raise InputError(f"Expected {_PACKED}, or samp11.npz and the other samples", file=root)


def sample_table(rows: Sequence[GroundRow]) -> Table:
    """Errors on each sample, by the network that held it out."""
    heading = ["sample", "type I %", "type II %", "total %", "IoU %", "kappa %"]
    heading += [f"{method.upper()}, total %" for method in GROUND_FILTERS] + [""]
    classical = {(row.filter, row.sample): row.score for row in rows if row.filter in GROUND_FILTERS}
    fold_of = {name: fold for fold, names in enumerate(FOLDS) for name in names}
    lines = []
    for row in sorted((r for r in rows if r.filter == "fgnn"), key=lambda r: r.sample):
        s = row.score
        shown = [f"{100 * v:.2f}" for v in (s.type_1, s.type_2, s.total, s.iou, s.kappa)]
        beside = [classical.get((method, row.sample)) for method in GROUND_FILTERS]
        totals = ["–" if score is None else f"{100 * score.total:.2f}" for score in beside]
        lines.append([row.sample, *shown, *totals, f"{row.origin}, fold {fold_of[row.sample]}"])
    return Table(heading, lines, "Ground on the ISPRS samples, each filtered by the network that held it out")


def mean_table(rows: Sequence[GroundRow]) -> Table:
    """Means over samples, beside published results."""
    lines, strong = [], []
    shown = {
        "fgnn": "fgnn, one network for all samples of a fold",
        **{method: f"{method.upper()}, one set of parameters, our code" for method in GROUND_FILTERS},
    }
    for name, title in shown.items():
        scores = [row.score for row in rows if row.filter == name]
        if not scores:
            continue
        strong += [0] if name == "fgnn" else []
        total, kappa = (100 * sum(getattr(s, key) for s in scores) / len(scores) for key in ("total", "kappa"))
        lines.append([title, f"{total:.2f}", f"{kappa:.2f}", f"{len(scores)} samples, this run and the card"])
    for name, published, agreement, source in PUBLISHED:
        cells = ["–" if v is None else f"{v:.2f}" for v in (published, agreement)]
        lines.append([name, *cells, source])
    heading = ["filter", "mean total error %", "mean kappa %", "source"]
    return Table(heading, lines, "Means over the samples", frozenset(strong))


def _page(tables: Sequence[Table]) -> Page:
    page = Page("Ground in airborne scans: the ISPRS filter test")
    page.text(
        "Type I is the share of ground that is rejected, type II the share of other points accepted as ground, total "
        "the share of all points. Published filters were run on the samples as released; in the data used here the "
        "y coordinate is rounded to half a metre. Classical filters are not trained; ours learns from the other "
        "samples of the same test and from three public scans."
    )
    for table in tables:
        page.table(table)
    return page
