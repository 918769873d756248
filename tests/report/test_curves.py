"""Metrics are called what they are: one name has one meaning, and only values of one metric share an axis."""

from __future__ import annotations

from fgnn.report.curves import curves_of, metric_label, metric_tag

SCANS = [
    {"step": 10, "loss": 0.5, "accuracy": 0.91, "rate": 0.01, "per_second": 5.0, "seconds": 1.0},
    {
        "step": 20, "loss": 0.4, "accuracy": 0.93, "rate": 0.01, "per_second": 5.0, "seconds": 2.0,
        "validation_loss": 0.6, "validation_miou": 0.55, "validation_accuracy": 0.9, "validation_iou ground": 0.8,
        "validation_iou tree": float("nan"),
    },
]  # fmt: skip
CHAINS = [
    {"step": 10, "loss": 0.5, "agreement": 0.9, "validation_agreement": 0.8, "validation_optimal": 0.3},
]


def test_accuracy_and_iou_are_on_different_axes() -> None:
    axes = {curves.label: curves.points(SCANS) for curves in curves_of(SCANS)}
    assert list(axes) == ["loss", "accuracy", "IoU of held-out points", "IoU by class of held-out points"]
    assert axes["accuracy"] == {"training": [(10.0, 0.91), (20.0, 0.93)], "held out": [(20.0, 0.9)]}
    assert axes["IoU of held-out points"] == {"mean IoU": [(20.0, 0.55)]}
    assert axes["IoU by class of held-out points"] == {"ground": [(20.0, 0.8)]}  # what is not finite is not drawn


def test_each_share_of_models_has_an_axis() -> None:
    assert [curves.label for curves in curves_of(CHAINS)] == ["loss", "agreement", "optimal, held out"]


def test_names_are_the_same_in_logs_pages_and_tensorboard() -> None:
    assert metric_label("miou") == "mean IoU"
    assert metric_label("instance_miou") == "instance mIoU"
    assert metric_tag("validation_miou") == "mean IoU/held out"
    assert metric_tag("accuracy") == "accuracy/training"
    assert metric_tag("validation_accuracy") == "accuracy/held out"
    assert metric_tag("rate") == "rate"
    keys = {key for line in SCANS + CHAINS for key in line}
    assert len({metric_tag(key) for key in keys}) == len(keys)
