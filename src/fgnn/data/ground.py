"""Airborne LiDAR with ground and other points told apart: the ISPRS filter test's samples, and three public scans.

`python -m fgnn.data.ground SCANS OUT` makes a folder that `fgnn train` takes: one ``.npz`` a scan and ``classes.txt``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fgnn.data.scan_copies import rolling
from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, read_cloud, write_cloud

# The codes of ASPRS; 0 where a label says nothing.
GROUND, OTHER, UNKNOWN = 2, 1, 0
CLASSES_FILE = "ground: 2\nother: 1\n"

# The fifteen samples of the ISPRS test (Sithole and Vosselman 2004); the first digit is the site. Each is held out by
# one of three folds, and each fold holds out town (sites 1 to 4) and country (5 to 7).
SAMPLES = (
    "samp11", "samp12", "samp21", "samp22", "samp23", "samp24", "samp31", "samp41", "samp42", "samp51", "samp52",
    "samp53", "samp54", "samp61", "samp71",
)  # fmt: skip
FOLDS = (
    ("samp12", "samp21", "samp31", "samp52", "samp54"),
    ("samp11", "samp23", "samp42", "samp51", "samp71"),
    ("samp22", "samp24", "samp41", "samp53", "samp61"),
)

# Scans whose ground was found by software and thinned: name -> metres a unit. What lies on the ground they found but
# is not labelled so is left out, and so is everything over their water.
_VENDORS = {"Megaplot.laz": 1.0, "Topography.laz": 1.0, "laspy_autzen_trim.laz": 0.3048}
_UNSURE = 0.3  # metres above the ground found by software


def read_samples(file: str | Path) -> dict[str, Cloud]:
    """The ISPRS samples of one ``.npz`` (``samp11_xyz``, ``samp11_ground``, …), each with ``classification``."""
    clouds = {}
    with np.load(file, allow_pickle=False) as arrays:
        for name in SAMPLES:
            if f"{name}_xyz" not in arrays or f"{name}_ground" not in arrays:
                raise InputError(f"Expected {name}_xyz and {name}_ground", file=file)
            label = np.where(arrays[f"{name}_ground"] == 1, GROUND, OTHER).astype(np.uint8)
            clouds[name] = Cloud(arrays[f"{name}_xyz"].astype(np.float64), {"classification": label})
    return clouds


def read_vendor(file: str | Path) -> Cloud:
    """A public scan in metres, with the labels that can be trusted."""
    path = Path(file)
    raw = read_cloud(path)
    xyz = (raw.xyz - raw.origin) * _VENDORS.get(path.name, 1.0)
    label = raw.fields["classification"].copy()
    label[~np.isin(label, (GROUND, OTHER))] = UNKNOWN
    above = height_over(xyz, label == GROUND)
    label[(label == OTHER) & (np.abs(above) < _UNSURE)] = UNKNOWN
    if (raw.xyz[label == GROUND, 2] == 0).all():  # heights above ground: give it a ground again
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
    (target / "classes.txt").write_text(CLASSES_FILE, encoding="utf-8")
    return sorted(clouds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a folder of airborne scans to train on.")
    parser.add_argument("scans", help="the folder with isprs_filtertest_ground.npz and the .laz files")
    parser.add_argument("out")
    given = parser.parse_args()
    print("wrote " + ", ".join(prepare(given.scans, given.out)))


if __name__ == "__main__":
    main()
