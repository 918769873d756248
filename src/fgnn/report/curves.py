"""The curves of a training run: which metrics share an axis, and what they are called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What every run logs; other keys are metrics of its task, of held-out instances where they begin with "validation_".
ALWAYS = ("step", "loss", "rate", "per_second", "seconds")
HELD_OUT = "validation_"
_LABELS = {
    "miou": "mean IoU", "instance_miou": "instance mIoU", "class_miou": "category mIoU", "bits": "correct bits",
    "words": "correct words",
}  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """Metrics of one unit, drawn on one axis: keys of the log by the name of the curve."""

    label: str
    keys: Mapping[str, str]
    small: bool = True  # few enough for the picture of a run

    def points(self, logged: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
        """The finite points (step, value) of each curve that has any."""
        series = {
            name: [(float(line["step"]), float(line[key])) for line in logged if _finite(line.get(key))]
            for name, key in self.keys.items()
        }
        return {name: points for name, points in series.items() if points}


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def metric_label(name: str) -> str:
    """What logs, pages and charts call a metric."""
    return _LABELS.get(name, name.replace("_", " "))


def metric_tag(key: str) -> str:
    """What TensorBoard calls a key of the log: training and held-out values of one metric are neighbours."""
    if key.startswith(HELD_OUT):
        return f"{metric_label(key.removeprefix(HELD_OUT))}/held out"
    return key if key in ALWAYS and key != "loss" else f"{metric_label(key)}/training"


def task_metrics(logged: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics that a task logs in training."""
    keys = dict.fromkeys(key for line in logged for key in line)
    return [key for key in keys if key not in ALWAYS and not key.startswith(HELD_OUT)]


def curves_of(logged: Sequence[Mapping[str, Any]]) -> list[Curves]:
    """The loss, then each metric in training and held out, then what is measured on held-out instances alone.

    Only values of the same metric, and the kinds of IoU, share an axis.
    """
    both = ["loss", *task_metrics(logged)]
    curves = [Curves(metric_label(n), {"training": n, "held out": f"{HELD_OUT}{n}"}) for n in both]
    keys = dict.fromkeys(key for line in logged for key in line if key.startswith(HELD_OUT))
    rest = [name for key in keys if (name := key.removeprefix(HELD_OUT)) not in both]
    mean_ious = {metric_label(name): f"{HELD_OUT}{name}" for name in rest if name.endswith("miou")}
    class_ious = {name.removeprefix("iou "): f"{HELD_OUT}{name}" for name in rest if name.startswith("iou ")}
    if mean_ious:
        curves.append(Curves("IoU of held-out points", mean_ious))
    if class_ious:
        curves.append(Curves("IoU by class of held-out points", class_ious, small=False))
    others = [name for name in rest if not name.endswith("miou") and not name.startswith("iou ")]
    return curves + [Curves(f"{metric_label(name)}, held out", {"held out": f"{HELD_OUT}{name}"}) for name in others]
