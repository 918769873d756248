"""Make the training folder of `lidar-aerial`: `python -m tools.make_aerial_data SCANS OUT`.

It holds one ``.npz`` for each scan, thinned to the lowest point per 32 cm voxel, and ``classes.txt``, as `fgnn train`
expects. Networks label the lowest points of voxels twice as wide, so thinning loses nothing but the densest copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fgnn.data.aerial import classes_text, read_all
from fgnn.points import Cloud, write_cloud
from fgnn.points.thin import lowest_per_voxel

VOXEL = 0.32


def thinned(cloud: Cloud, voxel: float = VOXEL) -> Cloud:
    """The lowest points of the voxels, rounded to centimetres."""
    local = cloud.xyz - cloud.xyz.min(0)
    keep, _ = lowest_per_voxel(local.astype(np.float32), voxel)
    return Cloud(np.round(local[keep], 2), {name: values[keep] for name, values in cloud.fields.items()})


def prepare(scans: str | Path, out: str | Path) -> list[str]:
    """Write the training folder; returns the names of the scans."""
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    names = []
    for name, cloud in read_all(scans).items():
        small = thinned(cloud)
        write_cloud(small, target / f"{name}.npz")
        print(f"{name}: {len(small):,} of {len(cloud):,} points")
        names.append(name)
    (target / "classes.txt").write_text(classes_text(), encoding="utf-8")
    return sorted(names)


def main(
    scans: Annotated[Path, typer.Argument(help="The folder with isprs_filtertest_ground.npz, .laz files and aerial/.")],
    out: Path,
) -> None:
    """Make a folder of airborne scans to train on."""
    print(f"{out}: {len(prepare(scans, out))} scans")


if __name__ == "__main__":
    typer.run(main)
