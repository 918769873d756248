"""A labelled scan as one page: points of each class, how sure the network was, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.report.charts import bars
from fgnn.report.html import Page
from fgnn.report.provenance import add_provenance
from fgnn.report.tables import Table

_BINS = 10


def write_segment_page(
    path: str | Path,
    *,
    scan: str,
    out: str,
    model: str,
    classes: Sequence[str],
    counts: Mapping[str, int],
    label: NDArray[np.integer[Any]],
    confidence: NDArray[np.floating[Any]],
    seconds: float,
    environment: Mapping[str, Any],
    seed: int = 0,
) -> Path:
    """Write the page.

    Args:
        counts: Points of each class, of the whole scan.
        label: Of all points, or of a sample of them.
        confidence: Of the same points.
    """
    total = sum(counts.values())
    page = Page(f"{scan}, labelled by {model}")
    page.text(
        f"{total:,} points in {seconds:.1f} s, {total / max(seconds, 1e-9):,.0f} points a second. Written to {out}."
    )
    rows = []
    for name, count in counts.items():
        of_class = confidence[label == classes.index(name)] if name in classes else confidence[:0]
        sure = f"{of_class.mean():.3f}" if len(of_class) else "–"
        unsure = f"{100 * (of_class < 0.6).mean():.1f}" if len(of_class) else "–"
        rows.append((name, f"{count:,}", f"{100 * count / max(total, 1):.2f}", sure, unsure))
    page.table(Table(("class", "points", "%", "mean confidence", "below 0.6, %"), rows))
    page.picture(bars(list(counts), {"points": [float(c) for c in counts.values()]}, "points"), "Points of each class")
    known = label < len(classes)
    sure_of = confidence[known]
    edges = np.linspace(np.floor(_BINS * sure_of.min()) / _BINS if len(sure_of) else 0.0, 1.0, _BINS + 1)
    groups = [f"{a:.2f}–{b:.2f}" for a, b in pairwise(edges)]
    share = {
        name: [100 * float(c) / max(1, int(known.sum())) for c in np.histogram(confidence[label == k], edges)[0]]
        for k, name in enumerate(classes)
        if (label == k).any()
    }
    if share:
        page.picture(bars(groups, share, "% of points"), "How sure the network was, by class")
    if len(label) != total:
        page.text(f"Confidence is that of {len(label):,} points drawn evenly from all.")
    add_provenance(
        page, command=str(environment.get("command", "")), seeds={"order of points": seed}, environment=environment
    )
    return page.write(path)
