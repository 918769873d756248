"""Make the training folder of the ground filter: `python -m tools.make_ground_data SCANS OUT`.

It holds one ``.npz`` for each ISPRS sample and public scan, and ``classes.txt``, as `fgnn train` expects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from fgnn.data.ground import GROUND, OTHER, UNKNOWN, read_samples
from fgnn.data.scan_copies import rolling
from fgnn.points import Cloud, read_cloud, write_cloud

# Public scans (name -> metres per unit) whose ground points were found by software and thinned. Unlabelled points near
# that ground, and everything over water, are ignored in training.
_VENDORS = {"Megaplot.laz": 1.0, "Topography.laz": 1.0, "laspy_autzen_trim.laz": 0.3048}
_UNSURE = 0.3  # metres above the ground found by software


def read_vendor(file: str | Path) -> Cloud:
    """A public scan in metres; unreliable labels become UNKNOWN."""
    path = Path(file)
    raw = read_cloud(path)
    xyz = (raw.xyz - raw.origin) * _VENDORS.get(path.name, 1.0)
    label = raw.fields["classification"].copy()
    label[~np.isin(label, (GROUND, OTHER))] = UNKNOWN
    above = height_over(xyz, label == GROUND)
    label[(label == OTHER) & (np.abs(above) < _UNSURE)] = UNKNOWN
    if (raw.xyz[label == GROUND, 2] == 0).all():  # z is the height above ground: add a rolling ground
        rng = np.random.default_rng(0)
        xyz[:, 2] += rolling(xyz[:, :2], rng, steepness=0.15) + rng.normal(0, 0.05, len(xyz))
    return Cloud(xyz, {"classification": label})


def height_over(xyz: NDArray[np.float64], ground: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Height of every point over the median of the three nearest ground points."""
    from scipy.spatial import cKDTree

    _, near = cKDTree(xyz[ground, :2]).query(xyz[:, :2], k=3)
    return np.asarray(xyz[:, 2] - np.median(xyz[ground, 2][near], axis=1))


def prepare(scans: str | Path, out: str | Path) -> list[str]:
    """Write the training folder; returns the names of the scans."""
    source, target = Path(scans), Path(out)
    target.mkdir(parents=True, exist_ok=True)
    clouds = read_samples(source / "isprs_filtertest_ground.npz")
    clouds |= {Path(name).stem: read_vendor(source / name) for name in _VENDORS}
    for name, cloud in clouds.items():
        write_cloud(Cloud(np.round(cloud.xyz, 2).astype(np.float64), cloud.fields), target / f"{name}.npz")
    (target / "classes.txt").write_text(f"ground: {GROUND}\nother: {OTHER}\n", encoding="utf-8")
    return sorted(clouds)


def main(
    scans: Annotated[Path, typer.Argument(help="The folder with isprs_filtertest_ground.npz and the .laz files.")],
    out: Path,
) -> None:
    """Make a folder of airborne scans to train on."""
    print("wrote " + ", ".join(prepare(scans, out)))


if __name__ == "__main__":
    typer.run(main)
