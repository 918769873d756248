"""One page about a labelled scan: points per class, confidence of the network, and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.points import Cloud
from fgnn.points.survey import TileResult
from fgnn.report.charts import bars
from fgnn.report.html import Page, add_provenance
from fgnn.report.tables import Table

_BINS = 10


@dataclass(frozen=True, eq=False)
class LabelledScan:
    """The outcome of labelling a scan.

    Args:
        scan, out: The scan and the labelled file.
        counts: Points per class in the whole scan.
        sample: All points or a sample of them, with fields ``label`` and ``confidence``.
    """

    scan: str
    out: str
    model: str
    classes: Sequence[str]
    counts: Mapping[str, int]
    sample: Cloud
    seconds: float

    @property
    def title(self) -> str:
        return f"{self.scan}, labelled by {self.model}"


def write_segment_page(path: str | Path, result: LabelledScan, environment: Mapping[str, Any]) -> Path:
    """Write the page."""
    counts, classes, seconds = result.counts, result.classes, result.seconds
    label, confidence = result.sample.fields["label"], result.sample.fields["confidence"]
    total = sum(counts.values())
    page = Page(result.title)
    rate = total / max(seconds, 1e-9)
    page.text(f"{total:,} points in {seconds:.1f} s, {rate:,.0f} points per second. Written to {result.out}.")
    rows = []
    for name, count in counts.items():
        of_class = confidence[label == classes.index(name)] if name in classes else confidence[:0]
        mean = f"{of_class.mean():.3f}" if len(of_class) else "–"
        unsure = f"{100 * (of_class < 0.6).mean():.1f}" if len(of_class) else "–"
        rows.append((name, f"{count:,}", f"{100 * count / max(total, 1):.2f}", mean, unsure))
    page.table(Table(("class", "points", "%", "mean confidence", "below 0.6, %"), rows))
    page.picture(bars(list(counts), {"points": [float(c) for c in counts.values()]}, "points"), "Points per class")
    labelled = confidence[label < len(classes)]
    edges = np.linspace(np.floor(_BINS * labelled.min()) / _BINS if len(labelled) else 0.0, 1.0, _BINS + 1)
    groups = [f"{a:.2f}–{b:.2f}" for a, b in pairwise(edges)]
    share = {
        name: [100 * float(c) / max(1, len(labelled)) for c in np.histogram(confidence[label == k], edges)[0]]
        for k, name in enumerate(classes)
        if (label == k).any()
    }
    if share:
        page.picture(bars(groups, share, "% of points"), "Confidence of the network, by class")
    if len(label) != total:
        page.text(f"Confidence is measured on {len(label):,} points, an even sample of all.")
    add_provenance(
        page, command=str(environment.get("command", "")), seeds={"order of points": 0}, environment=environment
    )
    return page.write(path)


def write_survey_page(
    path: str | Path, name: str, results: Sequence[TileResult], seconds: float, environment: Mapping[str, Any]
) -> Path:
    """Write the page of a folder of tiles: points per class of each."""
    classes = list(dict.fromkeys(c for r in results for c in (r.counts or {})))
    page = Page(f"{name}, {len(results)} tiles")
    done = [r for r in results if r.counts is not None]
    total = sum(sum(r.counts.values()) for r in done if r.counts is not None)
    page.text(f"{total:,} points of {len(done)} tiles in {seconds:.1f} s; the other tiles had been labelled before.")
    rows = [
        (r.scan.name, *("–" if r.counts is None else f"{r.counts.get(c, 0):,}" for c in classes))
        for r in sorted(results, key=lambda r: r.scan.name)
    ]
    page.table(Table(("tile", *classes), rows))
    add_provenance(
        page, command=str(environment.get("command", "")), seeds={"order of points": 0}, environment=environment
    )
    return page.write(path)
