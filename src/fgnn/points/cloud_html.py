"""A cloud as HTML, for notebooks: its size, its classes, and a small view from above."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fgnn.drawing.fragment import figure_and_facts, text
from fgnn.drawing.png import encode_png
from fgnn.points.asprs import ASPRS

if TYPE_CHECKING:
    from fgnn.points.cloud import Cloud

_SIZE = 220  # pixels of the longer side of the view
_MOST_POINTS = 200_000  # in the view; more would not be seen
_MOST_CLASSES = 12
# colours of the ramp of heights, low to high
_RAMP = np.array([[59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], np.float64)
_CLASSES = np.array(
    [[86, 156, 214], [222, 142, 66], [110, 181, 106], [214, 92, 92], [154, 120, 200], [168, 124, 104], [226, 150, 200]],
    np.float64,
)


def cloud_html(cloud: Cloud) -> str:
    """Points, extent, fields, points by class, and the highest points from above."""
    xyz = cloud.xyz[cloud.valid]
    facts = [("points", f"{len(cloud):,}")]
    if len(xyz) < len(cloud):
        facts.append(("without coordinates", f"{len(cloud) - len(xyz):,}"))
    if len(xyz):
        facts.append(("extent", " × ".join(f"{side:,.6g}" for side in np.ptp(xyz, axis=0))))
    facts.append(("fields", ", ".join(cloud.fields) or "none"))
    name = next((n for n in ("label", "classification") if n in cloud.fields), None)
    labels = None
    if name is not None and np.issubdtype(cloud.fields[name].dtype, np.integer):
        labels = cloud.fields[name]
        facts.append((name, _class_counts(labels, standard=name == "classification")))
    shown = None if labels is None else labels[cloud.valid]
    view = _view(xyz, shown) + _key(shown, standard=name == "classification") if len(xyz) else ""
    note = f"from above, coloured by {name if labels is not None else 'height'}" if view else ""
    return figure_and_facts("Cloud", facts, view, note)


def _key(labels: NDArray[Any] | None, *, standard: bool) -> str:
    """Which colour is which class; those that share a colour are left out."""
    if labels is None:
        return ""
    colours = ["#{:02x}{:02x}{:02x}".format(*row) for row in _CLASSES.astype(int).tolist()]
    names = ASPRS if standard else {}
    classes = (text(names.get(int(value), value)) for value in np.unique(labels))
    marks = (f"<span style='color:{c}'>■</span> {name}" for c, name in zip(colours, classes, strict=False))
    return f"<div>{' '.join(marks)}</div>"


def _class_counts(labels: NDArray[Any], *, standard: bool) -> str:
    values, counts = np.unique(labels, return_counts=True)
    names = ASPRS if standard else {}
    order = np.argsort(-counts, kind="stable")[:_MOST_CLASSES]
    parts = [f"{names.get(int(values[k]), values[k])} {counts[k]:,}" for k in order]
    return ", ".join(parts) + (", …" if len(values) > _MOST_CLASSES else "")


def _view(xyz: NDArray[np.float64], labels: NDArray[Any] | None) -> str:
    """An image of the highest point in each pixel, transparent elsewhere."""
    step = -(-len(xyz) // _MOST_POINTS)
    order = np.argsort(xyz[::step, 2], kind="stable")  # later points are drawn over earlier ones
    points = xyz[::step][order]
    low, side = points[:, :2].min(0), np.ptp(points[:, :2], axis=0)
    # about two points per pixel, so that few points still make a picture
    across = np.clip(np.sqrt(len(points) / 2 * side.max() / max(side.min(), 0.05 * side.max(), 1e-12)), 8, _SIZE)
    pixel = max(float(side.max()) / (across - 1), 1e-12)
    column, row = ((points[:, :2] - low) / pixel).astype(np.int64).T
    width, height = (int(v) + 1 for v in (column.max(), row.max()))
    if labels is None:
        rank = np.linspace(0, len(_RAMP) - 1, len(points))
        colours = np.stack([np.interp(rank, np.arange(len(_RAMP)), channel) for channel in _RAMP.T], axis=1)
    else:
        number = np.searchsorted(np.unique(labels), labels[::step][order])
        colours = _CLASSES[number % len(_CLASSES)]
    image = np.zeros((height, width, 4), np.uint8)
    image[height - 1 - row, column] = np.concatenate([colours, np.full((len(points), 1), 255.0)], axis=1)
    data = base64.b64encode(encode_png(image)).decode()
    style = f"width:{_SIZE * width // max(width, height)}px;image-rendering:pixelated;background:none"
    return f"<img alt='the cloud from above' style='{style}' src='data:image/png;base64,{data}'>"
