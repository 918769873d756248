"""`fgnn segment` for airborne scans: filters, ground models, heights, units, folders of tiles."""

from __future__ import annotations

from pathlib import Path

import laspy
import numpy as np
import pytest

from fgnn.points.cloud import Cloud, read_cloud, write_cloud
from tests.cli.command import fgnn
from tests.points.test_terrain import slope


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    cloud, _ = slope(6000)
    write_cloud(cloud, tmp_path / "scan.laz")
    return tmp_path / "scan.laz"


@pytest.mark.parametrize("method", ["smrf", "pmf", "csf"])
def test_classical_filters_label_a_scan(scan: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = scan.with_name("out.laz")
    code, text, error = fgnn(capsys, "segment", scan, "--method", method, "--hag", "--out", out)
    assert (code, error) == (0, "")
    assert "ground" in text
    done = read_cloud(out)
    np.testing.assert_array_equal(done.fields["classification"] == 2, done.fields["label"] == 0)
    _, height = slope(6000)
    assert ((done.fields["label"] == 0) == (height == 0)).mean() > 0.95
    assert np.median(np.abs(done.fields["height_above_ground"] - height)) < 0.1


def test_terrain_model_and_kept_classification(scan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, dtm = scan.with_name("out.laz"), scan.with_name("dtm.tif")
    words = ("--method", "smrf", "--dtm", dtm, "--dtm-cell", 2, "--keep-classification", "--out", out)
    code, text, _ = fgnn(capsys, "segment", scan, *words)
    assert code == 0
    assert "cells of 2" in text
    assert dtm.read_bytes()[:4] == b"II*\0"
    assert not read_cloud(out).fields["classification"].any()


def test_feet_are_converted_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud, height = slope(6000)
    write_cloud(Cloud(cloud.xyz / 0.3048, {}), tmp_path / "a.laz")
    code, text, _ = fgnn(capsys, "segment", tmp_path / "a.laz", "--method", "smrf", "--units", "ft")
    assert code == 0
    assert "ft" in text
    done = read_cloud(tmp_path / "a.labelled.laz")
    assert ((done.fields["label"] == 0) == (height == 0)).mean() > 0.98


def test_degrees_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud, _ = slope(500)
    xyz = (cloud.xyz - cloud.xyz.min(0)) * (1e-5, 1e-5, 1.0) + (2.35, 48.85, 100.0)
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales, header.offsets = np.full(3, 1e-7), np.floor(xyz.min(0))
    with laspy.open(tmp_path / "a.las", mode="w", header=header) as file:
        points = laspy.ScaleAwarePointRecord.zeros(len(xyz), header=header)
        points.x, points.y, points.z = xyz.T
        file.write_points(points)
    code, _, error = fgnn(capsys, "segment", tmp_path / "a.las", "--method", "smrf")
    assert code == 2
    assert "degrees" in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "a.labelled.las").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "magic"), "--method"), (("--jobs", "0"), "--jobs"), (("--dtm-cell", "0"), "--dtm-cell"),
        (("--units", "miles", "--method", "smrf"), "--units"),
    ],
)  # fmt: skip
def test_bad_options_give_one_line(
    scan: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = fgnn(capsys, "segment", scan, *words)
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_folder_of_tiles_is_labelled_as_one_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cloud, _ = slope(6000)
    east = cloud.xyz[:, 0] > cloud.xyz[:, 0].mean()
    (tmp_path / "tiles").mkdir()
    for name, part in (("a", ~east), ("b", east)):
        write_cloud(cloud[part], tmp_path / "tiles" / f"{name}.laz")
    write_cloud(cloud, tmp_path / "whole.laz")
    assert fgnn(capsys, "segment", tmp_path / "whole.laz", "--method", "smrf")[0] == 0
    whole = read_cloud(tmp_path / "whole.labelled.laz").fields["label"]
    code, text, _ = fgnn(capsys, "segment", tmp_path / "tiles", "--method", "smrf")
    assert code == 0
    assert "2 tiles, 6,000 points" in text
    out = tmp_path / "tiles.labelled"
    for name, part in (("a", ~east), ("b", east)):
        np.testing.assert_array_equal(read_cloud(out / f"{name}.laz").fields["label"], whole[part])
    assert "a.laz" in (out / "report.html").read_text(encoding="utf-8")
    again = fgnn(capsys, "segment", tmp_path / "tiles", "--method", "smrf")
    assert again[0] == 0
    assert again[1].count("already there") == 2
    refused = fgnn(capsys, "segment", tmp_path / "tiles", "--method", "smrf", "--dtm", tmp_path / "x.tif")
    assert refused[0] == 2
