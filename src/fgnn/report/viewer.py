"""A self-contained HTML page that shows a labelled cloud."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.files import atomic_write
from fgnn.points import Cloud
from fgnn.report.layers import class_layer, encode, scan_layers, value_layer

# More points make the page slow to load.
MAX_POINTS = 1_000_000
# Share of the points that may lie outside the first view on each side: stray points must not shrink the rest.
_STRAY = 0.002


def write_viewer(
    cloud: Cloud,
    label: NDArray[np.integer],
    path: str | Path,
    classes: Sequence[str],
    confidence: NDArray[np.floating] | None = None,
    title: str = "Labelled scan",
    max_points: int = MAX_POINTS,
    totals: Mapping[str, int] | None = None,
) -> Path:
    """Write the page: colour by class, height, confidence and whatever the scan holds, a profile, and point picking.

    Points without finite coordinates are omitted; a random sample of ``max_points`` is shown if there are more. Labels
    outside the classes are shown grey as "unlabelled". If the cloud is a sample, ``totals`` are the points per class of
    the whole scan.
    """
    valid = np.nonzero(cloud.valid)[0]
    shown, note = valid, f"{len(valid):,} points."
    if len(valid) > max_points:
        shown = np.sort(np.random.default_rng(0).choice(valid, max_points, replace=False))
        note = f"{max_points:,} of {len(valid):,} points shown."
    names = [*classes, "unlabelled"]
    ids = np.where((label >= 0) & (label < len(classes)), label, len(classes)).astype(np.int64)
    counts = np.bincount(ids, minlength=len(names))
    if totals is not None:
        counts = np.array([totals.get(name, 0) for name in names])
        note = f"{len(shown):,} of {counts.sum():,} points shown." if counts.sum() > len(shown) else note
    part, ids = cloud[shown], ids[shown]
    first = class_layer("class", "class", ids, names, counts.tolist())
    layers = [first, value_layer("height", "height", part.xyz[:, 2])]
    layers += scan_layers(part, ids, classes)
    if confidence is not None:
        layers.append(value_layer("confidence", "confidence", np.asarray(confidence)[shown], (0.0, 1.0)))
    data: dict[str, Any] = {"title": title, "note": note, "count": len(shown), **_places(part)}
    data |= {"classes": first.plain()["entries"], "layers": [layer.plain() for layer in layers]}
    page = (files("fgnn.report") / "pages" / "viewer.html").read_text(encoding="utf-8")
    # "</script>" or "<!--" in the data would end the script
    parts = {"__TITLE__": html.escape(title), "__DATA__": json.dumps(data).replace("<", "\\u003c")}
    page = re.sub("__TITLE__|__DATA__", lambda mark: parts[mark.group()], page)  # in one pass: a title may hold a mark
    with atomic_write(path) as out:
        out.write(page)
    return Path(path)


def _places(cloud: Cloud) -> dict[str, Any]:
    """Positions as 16-bit steps of the extent, where they begin, and the box to show first, as shares of the extent."""
    xyz = cloud.local().astype(np.float64)
    low = xyz.min(0) if len(xyz) else np.zeros(3)
    extent = np.ptp(xyz, axis=0) if len(xyz) else np.ones(3)
    share = (xyz - low) / np.where(extent > 0, extent, 1)
    box = np.quantile(share, [_STRAY, 1 - _STRAY], axis=0) if len(xyz) else np.array([[0.0] * 3, [1.0] * 3])
    return {
        "origin": (low + cloud.origin).tolist(),
        "extent": extent.tolist(),
        "box": box.tolist(),
        "position": encode(np.round(share * 65535).astype("<u2")),
    }
