"""Entwine point tiles: the nodes together are the cloud, in LAZ and in plain records; laspy writes the nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest

from fgnn.errors import InputError
from fgnn.points import open_cloud, read_cloud
from fgnn.points.units import unit_of
from tests.cli.command import fgnn

COUNTS = {"0-0-0-0": 700, "1-0-0-0": 500, "1-1-0-1": 300, "2-2-1-3": 41}
FEET = 'PROJCS["Oregon",UNIT["foot",0.3048]]'
SCHEMA = [
    {"name": name, "type": "signed", "size": 4, "scale": 0.01, "offset": 100}
    for name in "XYZ"
] + [
    {"name": "Intensity", "type": "unsigned", "size": 2},
    {"name": "ReturnNumber", "type": "unsigned", "size": 1},
    {"name": "Classification", "type": "unsigned", "size": 1},
]  # fmt: skip


def make(folder: Path, kind: str = "laszip", **changes: Any) -> np.ndarray:
    """Write tiles on two pages of the hierarchy; returns X, Y, Z (steps), intensity, return and class of all points."""
    rng = np.random.default_rng(0)
    for name in ("ept-data", "ept-hierarchy"):
        (folder / name).mkdir(parents=True)
    everything = []
    for node, count in COUNTS.items():
        rows = np.column_stack(
            [
                rng.integers(0, 5000, (count, 3)),
                rng.integers(0, 900, count),
                rng.integers(1, 4, count),
                np.full(count, 2),
            ]
        )
        everything.append(rows)
        if kind == "binary":
            dtype = np.dtype([("x", "<i4"), ("y", "<i4"), ("z", "<i4"), ("i", "<u2"), ("r", "u1"), ("c", "u1")])
            np.array([tuple(row) for row in rows.tolist()], dtype).tofile(folder / "ept-data" / f"{node}.bin")
            continue
        header = laspy.LasHeader(point_format=1, version="1.2")
        header.scales, header.offsets = np.full(3, 0.01), np.full(3, 100.0)
        las = laspy.LasData(header)
        las.X, las.Y, las.Z = rows[:, :3].T
        las.intensity, las.return_number, las.classification = rows[:, 3:].T
        las.write(str(folder / "ept-data" / f"{node}.laz"))
    pages = {
        "0-0-0-0": {"1-1-0-1": -1, "1-0-0-0": 500, "0-0-0-0": 700, "1-0-1-0": 0},
        "1-1-0-1": {"1-1-0-1": 300, "2-2-1-3": 41},
    }
    for page, entries in pages.items():
        (folder / "ept-hierarchy" / f"{page}.json").write_text(json.dumps(entries), encoding="utf-8")
    about = {
        "bounds": [100, 100, 100, 150, 150, 150], "dataType": kind, "points": 1541, "schema": SCHEMA,
        "srs": {"wkt": FEET}, "version": "1.0.0",
    }  # fmt: skip
    (folder / "ept.json").write_text(json.dumps(about | changes), encoding="utf-8")
    return np.concatenate(everything)


@pytest.mark.parametrize("kind", ["laszip", "binary"])
def test_the_nodes_are_the_cloud(tmp_path: Path, kind: str) -> None:
    rows = make(tmp_path / "tiles", kind)
    cloud = read_cloud(tmp_path / "tiles")
    names = ("intensity", "return_number", "classification")
    mine = np.column_stack(
        [
            np.round((cloud.xyz - 100) / 0.01),
            *(cloud.fields[n] for n in names),
        ]
    )
    np.testing.assert_array_equal(np.unique(mine, axis=0), np.unique(rows, axis=0))
    assert len(cloud) == len(rows)
    assert max(len(part) for part in open_cloud(tmp_path / "tiles" / "ept.json").chunks(64)) <= 64


def test_the_projection_and_the_extent_are_of_the_whole(tmp_path: Path) -> None:
    make(tmp_path / "tiles")
    reader = open_cloud(tmp_path / "tiles")
    assert unit_of(reader) == "ft"
    assert reader.header.keep["las"].maxs.tolist() == [150, 150, 150]


def test_segment_labels_a_folder_of_point_tiles_as_one_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "tiles")
    code, _, err = fgnn(capsys, "segment", tmp_path / "tiles", "--method", "smrf")
    assert code == 0, err
    labelled = laspy.read(str(tmp_path / "tiles.labelled.laz"))
    assert len(labelled.points) == 1541
    assert "label" in labelled.point_format.dimension_names


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"dataType": "zstandard"}, "zstandard"),
        ({"points": 1540}, "1540"),
        ({"points": -1}, "points"),
        ({"bounds": [0, 1]}, "bounds"),
    ],
)
def test_wrong_descriptions_are_refused(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    make(tmp_path / "tiles", **changes)
    with pytest.raises(InputError, match=place):
        read_cloud(tmp_path / "tiles")


@pytest.mark.parametrize(
    "entries",
    [{"../../etc": 5}, {"0-0-0-0": -2}, {"0-0-0-0": True}, {"0-0-0-0": -1}, {"0-0-0-0": 699}, {"5-0-0-0": 3}, []],
)
def test_wrong_hierarchies_are_refused(tmp_path: Path, entries: Any) -> None:
    make(tmp_path / "tiles")
    (tmp_path / "tiles" / "ept-hierarchy" / "0-0-0-0.json").write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(InputError):
        read_cloud(tmp_path / "tiles")


@pytest.mark.parametrize("entry", [{"name": "X"}, {"name": "X", "type": "float", "size": 2}, 3, SCHEMA[1]])
def test_wrong_schemas_are_refused(tmp_path: Path, entry: Any) -> None:
    make(tmp_path / "tiles", "binary", schema=[entry, *SCHEMA[1:]])
    with pytest.raises(InputError, match="schema"):
        read_cloud(tmp_path / "tiles")


def test_short_nodes_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "tiles", "binary")
    file = tmp_path / "tiles" / "ept-data" / "1-0-0-0.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="500 points"):
        read_cloud(tmp_path / "tiles")


def test_point_tiles_are_not_written(tmp_path: Path) -> None:
    from fgnn.points import write_cloud

    make(tmp_path / "tiles")
    with pytest.raises(InputError, match="not written"):
        write_cloud(read_cloud(tmp_path / "tiles"), tmp_path / "tiles" / "ept.json")
