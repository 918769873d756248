"""One HTML page that shows a labelled cloud in any browser, offline."""

from __future__ import annotations

import base64
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
from fgnn.points.cloud import Cloud

# More points than this make the page slow to load, and no screen shows them.
MAX_POINTS = 1_000_000

# Colours told apart by most people, repeated where there are more classes.
_PALETTE = (
    (86, 156, 214), (222, 142, 66), (110, 181, 106), (214, 92, 92), (154, 120, 200), (168, 124, 104), (226, 150, 200),
    (150, 150, 150), (198, 196, 84), (92, 196, 204), (240, 200, 140), (120, 140, 80), (200, 200, 240),
)  # fmt: skip


def write_viewer(
    cloud: Cloud,
    label: NDArray[np.integer],
    path: str | Path,
    classes: Sequence[str],
    confidence: NDArray[np.floating] | None = None,
    title: str = "Labelled scan",
    max_points: int = MAX_POINTS,
    seed: int = 0,
    totals: Mapping[str, int] | None = None,
) -> Path:
    """Write the page: colour by class, height, confidence or the scan's own colour, with a legend of counts.

    Points without finite coordinates are left out; of more than ``max_points`` a random share is shown (the counts in
    the legend are of all). Labels outside the classes are shown grey as "unlabelled". Where the cloud is itself a
    sample, ``totals`` gives the points of each class in the whole.
    """
    valid = np.nonzero(cloud.valid)[0]
    known = (label >= 0) & (label < len(classes))
    shown = valid
    note = f"{len(valid):,} points."
    if len(valid) > max_points:
        shown = np.sort(np.random.default_rng(seed).choice(valid, max_points, replace=False))
        note = f"{max_points:,} of {len(valid):,} points shown."
    ids = np.where(known, label, len(classes)).astype(np.uint8)
    names = [*classes, "unlabelled"]
    counts = np.bincount(ids, minlength=len(names))
    if totals is not None:
        counts = np.array([totals.get(name, 0) for name in names])
        note = f"{len(shown):,} of {counts.sum():,} points shown." if counts.sum() > len(shown) else note
    xyz = cloud.local()[shown].astype(np.float64)
    low = xyz.min(0) if len(xyz) else np.zeros(3)
    extent = np.ptp(xyz, axis=0) if len(xyz) else np.ones(3)
    grid = np.round((xyz - low) / np.where(extent > 0, extent, 1) * 65535).astype("<u2")
    sure = np.ones(len(cloud)) if confidence is None else np.nan_to_num(np.asarray(confidence, dtype=np.float64))
    rgb = cloud.rgb
    data: dict[str, Any] = {
        "title": title,
        "note": note,
        "count": len(shown),
        "extent": extent.tolist(),
        "position": _encode(grid),
        "label": _encode(ids[shown]),
        "confidence": _encode(np.round(np.clip(sure[shown], 0, 1) * 255).astype(np.uint8)),
        "rgb": None if rgb is None else _encode(np.round(np.clip(rgb[shown], 0, 1) * 255).astype(np.uint8)),
        "classes": [
            {"name": name, "count": int(counts[c]), "colour": list(_PALETTE[c % len(_PALETTE)])}
            for c, name in enumerate(names)
        ],
    }
    data["classes"][-1]["colour"] = [110, 110, 110]
    page = (files("fgnn.report") / "pages" / "viewer.html").read_text(encoding="utf-8")
    # "</script>" or "<!--" inside the data would change what the browser takes for the script
    parts = {"__TITLE__": html.escape(title), "__DATA__": json.dumps(data).replace("<", "\\u003c")}
    page = re.sub("__TITLE__|__DATA__", lambda found: parts[found.group()], page)  # at once: a title may hold a mark
    with atomic_write(path) as out:
        out.write(page)
    return Path(path)


def _encode(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
