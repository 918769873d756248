"""Airborne scans with ASPRS classes: what their labels mean, and the folds by region.

Providers label differently. In one scan "unclassified" means what is left, in another everything but ground and
buildings; some thin their ground. `read_aerial` turns each into labels that mean the same everywhere, with values of
their own for "one of these classes".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fgnn.data.ground import read_samples
from fgnn.data.scan_copies import rolling
from fgnn.points import Cloud, read_cloud

# Classes and their ASPRS codes.
CODES: Mapping[str, int] = {
    "ground": 2, "low vegetation": 3, "high vegetation": 5, "building": 6, "bridge": 17, "water": 9, "noise": 7,
    "other": 1,
}  # fmt: skip
UNKNOWN, NOISE = 0, 7
# Values for labels that leave several classes open.
_EITHER: Mapping[int, tuple[str, ...]] = {
    101: ("low vegetation", "high vegetation", "building", "bridge", "water", "noise", "other"),
    102: ("low vegetation", "high vegetation", "noise", "other"),
    103: ("low vegetation", "high vegetation"),
    104: ("low vegetation", "high vegetation", "bridge", "water", "noise", "other"),
    105: ("bridge", "other"),
}
_NOT_GROUND, _AHN_REST, _VEGETATION, _NEITHER_GROUND_NOR_BUILDING, _STRUCTURE = _EITHER
# Codes that mean the same in every scan; medium vegetation counts as low.
_USUAL: Mapping[int, int] = {2: 2, 3: 3, 4: 3, 5: 5, 6: 6, 7: 7, 9: 9, 17: 17, 18: 7}
# What further codes mean, by scan; other codes are ignored.
_OWN: Mapping[str, Mapping[int, int]] = {
    "ahn3_delft_1": {1: _AHN_REST, 26: _STRUCTURE},
    "ahn3_delft_2": {1: _AHN_REST, 26: _STRUCTURE},
    "ahn_amsterdam": {1: _AHN_REST, 26: _STRUCTURE},
    "870000_6618000_suburb": {1: _NEITHER_GROUND_NOR_BUILDING},
    "eucalypt_forest": {1: _VEGETATION},
    "pyfor_forest": {1: _AHN_REST},
    "Megaplot": {1: _NOT_GROUND},
    "Topography": {1: _NOT_GROUND},
    "laspy_autzen_trim": {1: _NOT_GROUND},
}
_IGN: Mapping[int, int] = {1: 1}
# Scans whose ground was thinned: unclassified points near the ground may be ground.
_THINNED = ("870000_6618000_suburb", "pyfor_forest", "Megaplot", "Topography", "laspy_autzen_trim")
_UNSURE = 0.3
_METRES: Mapping[str, float] = {"laspy_autzen_trim": 0.3048}

# Five folds by region: no place is in two of them. The digits of an ISPRS sample begin with its site.
FOLDS: tuple[tuple[str, ...], ...] = (
    (
        "77050_627755_town", "77050_627760_town", "77055_627755_town", "77055_627760_town", "77060_627755_town",
        "samp21", "samp22", "samp23", "samp24",
    ),
    ("0292_6833_thin", "ign_bat", "ahn_amsterdam", "Megaplot", "samp11", "samp12", "samp61"),
    ("0299_6802_thin", "ign_crop_1", "ign_crop_2", "Topography", "samp41", "samp42"),
    ("0382_6565_thin", "870000_6618000_suburb", "eucalypt_forest", "samp51", "samp52", "samp53", "samp54"),
    ("ign_pont", "ahn3_delft_1", "ahn3_delft_2", "pyfor_forest", "laspy_autzen_trim", "samp31", "samp71"),
)  # fmt: skip
SCANS: tuple[str, ...] = tuple(name for fold in FOLDS for name in fold if not name.startswith("samp"))
ECHO_FIELDS = ("intensity", "return_number", "number_of_returns")


def classes_text() -> str:
    """The classes file of a folder of such scans."""
    lines = [f"{name}: {code}" for name, code in CODES.items()]
    lines += [f"{' | '.join(names)}: {value}" for value, names in _EITHER.items()]
    return "\n".join(lines) + "\n"


def is_ground(label: NDArray[np.integer[Any]]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Ground points, and points of which this is known, of labels by `read_aerial`."""
    return label == CODES["ground"], (label != UNKNOWN) & (label != NOISE)


def read_aerial(file: str | Path) -> Cloud:
    """A scan in metres with ``classification`` as this module defines it, intensity and returns where it has them."""
    path = Path(file)
    name, raw = path.stem, read_cloud(path)
    xyz = (raw.xyz - np.floor(raw.origin)) * _METRES.get(name, 1.0)
    given = raw.fields["classification"]
    label = np.zeros(len(raw), np.uint8)
    for code, value in {**_USUAL, **_OWN.get(name, _IGN)}.items():
        label[given == code] = value
    if name in _THINNED:
        above = height_over(xyz, label == CODES["ground"])
        label[~np.isin(given, list(_USUAL)) & (np.abs(above) < _UNSURE)] = UNKNOWN
    if (raw.xyz[label == CODES["ground"], 2] == 0).all():  # z is the height above ground: add a rolling ground
        rng = np.random.default_rng(0)
        xyz[:, 2] += rolling(xyz[:, :2], rng, steepness=0.15) + rng.normal(0, 0.05, len(xyz))
    fields = {name: raw.fields[name] for name in ECHO_FIELDS if name in raw.fields}
    return Cloud(xyz, {"classification": label, **fields})


def read_all(scans: str | Path) -> dict[str, Cloud]:
    """All scans of the folds by name, from the folder of the ISPRS samples and the folder ``aerial`` in it."""
    root = Path(scans)
    clouds = {}
    for name in SCANS:
        inner = root / "aerial" / f"{name}.laz"
        clouds[name] = read_aerial(inner if inner.is_file() else root / f"{name}.laz")
    for name, cloud in read_samples(root / "isprs_filtertest_ground.npz").items():
        ground = cloud.fields["classification"] == CODES["ground"]
        clouds[name] = Cloud(
            cloud.xyz, {"classification": np.where(ground, CODES["ground"], _NOT_GROUND).astype(np.uint8)}
        )
    return clouds


def height_over(xyz: NDArray[np.float64], ground: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Height of every point over the median of the three nearest ground points."""
    from scipy.spatial import cKDTree

    _, near = cKDTree(xyz[ground, :2]).query(xyz[:, :2], k=3)
    return np.asarray(xyz[:, 2] - np.median(xyz[ground, 2][near], axis=1))
