"""Draw a town before and after labelling for the documentation: `python -m tools.town_picture`.

The scan, IGN LiDAR HD (Licence Ouverte 2.0), is not part of the repository: where it is missing, the picture stays as
it is. ``FGNN_DATA`` names the folder of the data, by default ``shared/data`` beside the project.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from fgnn.errors import need
from fgnn.files import atomic_write
from fgnn.models.points.segmenter import load_segmenter
from fgnn.points import Cloud, read_cloud, segment_cloud
from fgnn.report.layers import PALETTE

HERE = Path(__file__).resolve().parents[1]
SCAN = "scans/aerial/77055_627755_town.laz"
CREDIT = "Scan: IGN, LiDAR HD, Licence Ouverte 2.0"
_INK = "#808080"  # legible on white and on black
# The view: rotated about the vertical, and from above by this share of the heights.
_TURN, _TILT, _RISE = np.deg2rad(30.0), 0.55, 0.85


def projected(xyz: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Places on the picture (N, 2), and the order to draw in: from the back to the front."""
    x, y, z = (xyz - xyz.mean(0)).T
    right, back = x * np.cos(_TURN) - y * np.sin(_TURN), x * np.sin(_TURN) + y * np.cos(_TURN)
    return np.column_stack([right, _TILT * back + _RISE * z]), np.asarray(np.argsort(-back), np.int64)


def draw(cloud: Cloud, label: NDArray[np.uint8], classes: tuple[str, ...], path: Path) -> None:
    """Write a picture of the scan coloured by height, and beside it by class."""
    need("matplotlib").use("Agg")
    pyplot = need("matplotlib.pyplot")
    place, order = projected(cloud.xyz)
    height = cloud.xyz[:, 2]
    colours = np.array([PALETTE[c % len(PALETTE)] for c in range(len(classes))]) / 255
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), dpi=110)
    low, high = np.quantile(height, (0.01, 0.99))
    dots: dict[str, Any] = {"s": 0.35, "linewidths": 0}
    axes[0].scatter(*place[order].T, c=height[order], cmap="viridis", vmin=low, vmax=high, **dots)
    axes[1].scatter(*place[order].T, c=colours[label[order]], **dots)
    present = [n for n in range(len(classes)) if (label == n).mean() > 0.001]
    for n in present:
        axes[1].scatter([], [], color=colours[n], s=18, label=classes[n])
    axes[1].legend(loc="upper right", fontsize=7, frameon=False, labelcolor=_INK)
    for axis, title in zip(axes, ("as scanned, coloured by height", "labelled"), strict=True):
        axis.set_title(title, fontsize=9, color=_INK)
        axis.set_aspect("equal")
        axis.set_axis_off()
    figure.text(0.99, 0.01, CREDIT, ha="right", fontsize=6, color=_INK)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", bbox_inches="tight", transparent=True)
    pyplot.close(figure)


def main(
    scan: Annotated[Path | None, typer.Argument(help="Another scan.")] = None,
    model: Annotated[str, typer.Option(help="Weights for scans.")] = "lidar-aerial",
    out: Annotated[Path, typer.Option(help="The picture.")] = HERE / "docs" / "img" / "town.png",
) -> None:
    """Draw a town before and after labelling."""
    data = os.environ.get("FGNN_DATA")
    file = scan or (Path(data) if data else HERE.parent / "shared" / "data") / SCAN
    if not file.is_file():
        print(f"{file}: no such file; the picture stays as it is")
        return
    cloud, segmenter = read_cloud(file), load_segmenter(model)
    draw(cloud, segment_cloud(cloud, segmenter).label, tuple(segmenter.classes), out)
    print(f"{out}: {len(cloud):,} points")


if __name__ == "__main__":
    typer.run(main)
