"""`fgnn reproduce ground`: ground on the ISPRS samples, by the network that held each out and by classical filters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fgnn.data.ground import GROUND, SAMPLES, read_samples
from fgnn.errors import InputError
from fgnn.points import Cloud, ground_score, read_cloud
from fgnn.points.ground import GROUND_FILTERS
from fgnn.report import Page, Table
from fgnn.reproduce.experiment import Origin, Output, Setting, write_outputs
from fgnn.runtime.progress import Log
from fgnn.schema import convert
from fgnn.weights import Card
from fgnn.weights.cards import read_card

NAME = "lidar-aerial"
_PACKED = "isprs_filtertest_ground.npz"

# Mean total error over the fifteen samples in percent, where it was published.
PUBLISHED: tuple[tuple[str, float, str], ...] = (
    ("SMRF, parameters tuned for each sample", 2.97, "Pingel, Clarke and McBride 2013"),
)


@dataclass(frozen=True)
class GroundRow:
    """The total error of a filter on one sample; ``recorded`` if the card holds it."""

    filter: str
    sample: str
    total: float
    origin: Origin


def recorded_totals(card: Card) -> dict[str, float]:
    """Total errors on the samples by the networks that held them out, as a card records them."""
    folds = card.get("cross_validation")
    given = folds.get("total_error", {}) if isinstance(folds, dict) else {}
    totals: dict[str, dict[str, float]] = convert(
        dict[str, dict[str, float]], given, card.file, "cross_validation.total_error"
    )
    found = {name: totals[name][card.name] for name in SAMPLES if card.name in totals.get(name, {})}
    if not found:
        raise InputError("Expected weights with errors on the ISPRS samples on their card", file=card.file)
    return found


def reproduce_ground(setting: Setting, out: str | Path, log: Log) -> Output:
    """Run the classical filters on the samples; the errors of the networks are on the card."""
    start = time.perf_counter()
    if setting.data is None:
        raise InputError(f"Expected --data with the folder of {_PACKED} (or of samp11.npz, samp12.npz, …)")
    rows = [GroundRow("fgnn", *item, "recorded") for item in recorded_totals(read_card(setting.run or NAME)).items()]
    for name, cloud in samples_in(setting.data).items():
        for method, ground_filter in GROUND_FILTERS.items():
            score = ground_score(cloud.fields["classification"] == GROUND, ground_filter(cloud.xyz))
            rows.append(GroundRow(method, name, score.total, "measured"))
        shown = (f"{row.filter} {100 * row.total:.2f} %" for row in rows[-len(GROUND_FILTERS) :])
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
    """Total errors on each sample."""
    totals = {(row.filter, row.sample): row.total for row in rows}
    methods = ("fgnn", *GROUND_FILTERS)
    lines = []
    for sample in sorted({row.sample for row in rows}):
        found = [totals.get((method, sample)) for method in methods]
        lines.append([sample, *("–" if total is None else f"{100 * total:.2f}" for total in found)])
    heading = ["sample", "fgnn, %", *(f"{method.upper()}, %" for method in GROUND_FILTERS)]
    return Table(heading, lines, "Total error of ground on the ISPRS samples")


def mean_table(rows: Sequence[GroundRow]) -> Table:
    """Means and medians over samples, beside published results."""
    titles = {"fgnn": "fgnn, networks of the folds that held out the samples"}
    titles |= {method: f"{method.upper()}, one set of parameters, our code" for method in GROUND_FILTERS}
    lines = []
    for name, title in titles.items():
        totals = [100 * row.total for row in rows if row.filter == name]
        source = "the card" if name == "fgnn" else "this run"
        lines.append([title, f"{np.mean(totals):.2f}", f"{np.median(totals):.2f}", f"{len(totals)} samples, {source}"])
    lines += [[name, f"{mean:.2f}", "–", source] for name, mean, source in PUBLISHED]
    heading = ["filter", "mean total error %", "median %", "source"]
    return Table(heading, lines, "Over the samples", frozenset([0]))


def _page(tables: Sequence[Table]) -> Page:
    page = Page("Ground in airborne scans: the ISPRS filter test")
    page.text(
        "The total error is the share of points that are wrongly ground or wrongly not. Published filters were run on "
        "the samples as released; in the data used here the y coordinate is rounded to half a metre. Classical filters "
        "are not trained; ours learned from other regions."
    )
    for table in tables:
        page.table(table)
    return page
