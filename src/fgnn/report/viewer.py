"""A self-contained HTML page that shows a labelled cloud."""

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
from fgnn.points import Cloud

# More points make the page slow to load.
MAX_POINTS = 1_000_000

# Colours that most people can tell apart, repeated if there are more classes.
_PALETTE = (
    (86, 156, 214), (222, 142, 66), (110, 181, 106), (214, 92, 92), (154, 120, 200), (168, 124, 104), (226, 150, 200),
    (150, 150, 150), (198, 196, 84), (92, 196, 204), (240, 200, 140), (120, 140, 80), (200, 200, 240),
)  # fmt: skip
_GREY = (110, 110, 110)


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
    """Write the page: colour by class, height, confidence or the scan's own colour, with counts in the legend.

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
    ids = np.where((label >= 0) & (label < len(classes)), label, len(classes)).astype(np.uint8)
    counts = np.bincount(ids, minlength=len(names))
    if totals is not None:
        counts = np.array([totals.get(name, 0) for name in names])
        note = f"{len(shown):,} of {counts.sum():,} points shown." if counts.sum() > len(shown) else note
    xyz = cloud.local()[shown].astype(np.float64)
    low = xyz.min(0) if len(xyz) else np.zeros(3)
    extent = np.ptp(xyz, axis=0) if len(xyz) else np.ones(3)
    grid = np.round((xyz - low) / np.where(extent > 0, extent, 1) * 65535).astype("<u2")
    share = np.ones(len(cloud)) if confidence is None else np.nan_to_num(np.asarray(confidence, dtype=np.float64))
    rgb = cloud.rgb
    colours = [_PALETTE[c % len(_PALETTE)] for c in range(len(classes))] + [_GREY]
    data: dict[str, Any] = {
        "title": title,
        "note": note,
        "count": len(shown),
        "extent": extent.tolist(),
        "position": _encode(grid),
        "label": _encode(ids[shown]),
        "confidence": _encode(_bytes(share[shown])),
        "rgb": None if rgb is None else _encode(_bytes(rgb[shown])),
        "classes": [
            {"name": name, "count": int(count), "colour": list(colour)}
            for name, count, colour in zip(names, counts, colours, strict=True)
        ],
    }
    page = (files("fgnn.report") / "pages" / "viewer.html").read_text(encoding="utf-8")
    # "</script>" or "<!--" in the data would end the script
    parts = {"__TITLE__": html.escape(title), "__DATA__": json.dumps(data).replace("<", "\\u003c")}
    page = re.sub("__TITLE__|__DATA__", lambda mark: parts[mark.group()], page)  # in one pass: a title may hold a mark
    with atomic_write(path) as out:
        out.write(page)
    return Path(path)


def _bytes(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Numbers in 0..1 as 0..255."""
    return np.asarray(np.round(np.clip(values, 0, 1) * 255), np.uint8)


def _encode(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
