"""What the viewer can colour a cloud by: classes, values on a scale, and colours of the scan, one byte each."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fgnn.points import Cloud
from fgnn.points.asprs import ASPRS

# Colours that most people can tell apart, repeated if there are more classes.
PALETTE = (
    (86, 156, 214), (222, 142, 66), (110, 181, 106), (214, 92, 92), (154, 120, 200), (168, 124, 104), (226, 150, 200),
    (150, 150, 150), (198, 196, 84), (92, 196, 204), (240, 200, 140), (120, 140, 80), (200, 200, 240),
)  # fmt: skip
GREY = (110, 110, 110)
_RED, _DIM = (235, 80, 80), (70, 76, 86)

# Names that a network may have for the same class, the best first; "other" fits all of them.
_SAME: dict[int, tuple[str, ...]] = {
    3: ("low vegetation", "vegetation"),
    4: ("medium vegetation", "high vegetation", "vegetation"),
    5: ("high vegetation", "vegetation"),
    7: ("noise",),
    18: ("noise",),
}
_UNKNOWN = (0, 1, 12)  # codes that say nothing of what a point is


@dataclass(frozen=True)
class Entry:
    """One class of a layer."""

    name: str
    count: int
    colour: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Layer:
    """One way to colour the points.

    Args:
        name: Of the layer in the page's script; ``title`` is what the user reads.
        kind: ``classes`` (bytes are numbers of ``entries``), ``values`` (0 to 255 from ``low`` to ``high``) or
            ``colour`` (three bytes per point).
    """

    name: str
    title: str
    kind: Literal["classes", "values", "colour"]
    data: NDArray[np.uint8]
    entries: tuple[Entry, ...] = ()
    low: float = 0.0
    high: float = 1.0
    unit: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the layer as the page's script reads it."""
        return {
            "name": self.name, "title": self.title, "kind": self.kind, "data": encode(self.data),
            "entries": [{"name": e.name, "count": e.count, "colour": list(e.colour)} for e in self.entries],
            "low": self.low, "high": self.high, "unit": self.unit,
        }  # fmt: skip


def class_layer(
    name: str, title: str, ids: NDArray[np.integer], names: Sequence[str], counts: Sequence[int] | None = None
) -> Layer:
    """Classes by number; the last is grey."""
    number = np.bincount(ids, minlength=len(names)) if counts is None else counts
    colours = [PALETTE[c % len(PALETTE)] for c in range(len(names) - 1)] + [GREY]
    entries = (Entry(n, int(k), colour) for n, k, colour in zip(names, number, colours, strict=True))
    return Layer(name, title, "classes", ids.astype(np.uint8), tuple(entries))


def value_layer(
    name: str, title: str, values: NDArray[Any], limits: tuple[float, float] | None = None, unit: str = ""
) -> Layer:
    """Values on a scale, by default from their 1st to their 99th percentile, past a few outliers."""
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    if limits is None:
        limits = (float(np.percentile(finite, 1)), float(np.percentile(finite, 99))) if finite.size else (0.0, 1.0)
    low, high = limits
    share = (np.nan_to_num(numbers, nan=low, posinf=high, neginf=low) - low) / (high - low if high > low else 1.0)
    return Layer(name, title, "values", as_bytes(share), low=low, high=high, unit=unit)


def scan_layers(cloud: Cloud, ids: NDArray[np.integer], classes: Sequence[str]) -> list[Layer]:
    """The layers of what the scan itself holds: colour, intensity, returns, its classification and where that differs.

    Args:
        ids: The class of every point, ``len(classes)`` where it has none.
    """
    layers = []
    fields, rgb = cloud.fields, cloud.rgb
    if rgb is not None:
        layers.append(Layer("colour", "colour of the scan", "colour", as_bytes(rgb)))
    if "intensity" in fields:
        layers.append(value_layer("intensity", "intensity", fields["intensity"]))
    if {"return_number", "number_of_returns"} <= fields.keys():
        layers.append(_returns(fields["return_number"], fields["number_of_returns"]))
    codes = fields.get("classification_original", fields.get("classification"))
    if codes is not None and codes.dtype.kind in "iu" and codes.size:
        layers += _given(codes.astype(np.int64), ids, classes)
    return layers


def given_classes(codes: NDArray[np.integer], classes: Sequence[str]) -> NDArray[np.int64]:
    """The class of a network that each ASPRS code stands for; -1 where it says nothing, or the network has none."""
    known = np.full(256, -1, np.int64)
    for code, name in ASPRS.items():
        names = () if code in _UNKNOWN else (name, *_SAME.get(code, ()), "other")
        known[code] = next((classes.index(n) for n in names if n in classes), -1)
    return np.asarray(known[np.clip(codes, 0, 255)])


def _given(codes: NDArray[np.int64], ids: NDArray[np.integer], classes: Sequence[str]) -> list[Layer]:
    present = np.unique(codes)[:255]
    names = [*(ASPRS.get(int(code), f"class {code}") for code in present), "others"]
    numbers = np.minimum(np.searchsorted(present, codes), len(present))
    layers = [class_layer("given", "given classification", numbers, names)]
    given = given_classes(codes, classes)
    if (given >= 0).any():
        state = np.where((given < 0) | (ids == len(classes)), 2, (given != ids).astype(np.int64))
        counts = np.bincount(state, minlength=3)
        words, colours = ("agrees", "differs", "not comparable"), (_DIM, _RED, GREY)
        entries = (Entry(n, int(k), c) for n, k, c in zip(words, counts, colours, strict=True))
        layers.append(Layer("disagreement", "disagreement", "classes", state.astype(np.uint8), tuple(entries)))
    return layers


def _returns(number: NDArray[Any], total: NDArray[Any]) -> Layer:
    """Single, first, intermediate and last returns of a pulse."""
    number, total = np.asarray(number, np.int64), np.asarray(total, np.int64)
    kind = np.select([(total < 1) | (number < 1), total == 1, number == 1, number >= total], [4, 0, 1, 3], default=2)
    return class_layer("returns", "returns", kind, ("single", "first of several", "intermediate", "last", "unknown"))


def as_bytes(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Numbers in 0..1 as 0..255."""
    return np.asarray(np.round(np.clip(values, 0, 1) * 255), np.uint8)


def encode(array: NDArray[Any]) -> str:
    """Return the bytes of an array as text."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
