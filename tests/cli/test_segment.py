"""`fgnn segment`: labels any scan; bad input gives one line, exit code 2 and no file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from fgnn.data.scenes import make_terrain
from fgnn.data.shapenet import CATEGORIES, PARTS
from fgnn.models.points.config import PointConfig
from fgnn.models.points.network import PointNetwork
from fgnn.points.cloud import Cloud, read_cloud, write_cloud
from fgnn.points.heights import height_columns
from fgnn.schema import plain
from fgnn.tasks.data_settings import ScanData
from fgnn.weights import save_weights
from tests.cli.command import fgnn

TINY = PointConfig(k=4, bases=2, notation="Input - FGNN(8) - FC(8) - FC(N)")


def weights(
    path: Path, colour: bool = False, heights: tuple[float, ...] = (), classes: tuple[str, ...] = ("ground", "other")
) -> str:
    """An untrained network for scans."""
    torch.manual_seed(0)
    features = 3 + 3 * colour + height_columns(heights)
    network = PointNetwork(TINY, features, 2)
    data = plain(ScanData("nowhere", size=15.0, points=64, scale=5.0, colour=colour, heights=heights, grow=2.0))
    card = {
        "name": "tiny", "task": "points", "network": asdict(TINY), "classes": list(classes), "categories": [],
        "parts": [], "features": features, "inputs": "scan: tile", "data": {"scans": data},
    }  # fmt: skip
    save_weights(path, network.state_dict(), card)
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "weights").mkdir()
    return weights(tmp_path / "weights" / "tiny.safetensors", heights=(3.0, 9.0))


@pytest.mark.parametrize("suffix", [".laz", ".las", ".ply", ".pcd", ".csv", ".xyz", ".npy", ".npz"])
def test_every_format_is_written_in_its_own(
    tmp_path: Path, model: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cloud(make_terrain(500), tmp_path / f"scan{suffix}")
    code, out, err = fgnn(capsys, "segment", tmp_path / f"scan{suffix}", "--model", model, "--device", "cpu")
    assert code == 0, err
    assert "500 points" in out
    before, after = read_cloud(tmp_path / f"scan{suffix}"), read_cloud(tmp_path / f"scan.labelled{suffix}")
    np.testing.assert_array_equal(before.xyz, after.xyz)
    assert set(after.fields) >= {*before.fields, "label", "confidence"}


def odd_scans() -> dict[str, Cloud]:
    terrain = make_terrain(200).xyz
    holes = terrain.copy()
    holes[::7] = np.nan
    holes[3, 2] = np.inf
    return {
        "no point": Cloud(np.zeros((0, 3)), {"odd": np.zeros(0, np.int16)}),
        "one point": Cloud(terrain[:1], {"odd": np.zeros(1, np.int16)}),
        "one place": Cloud(np.repeat(terrain[:1], 150, axis=0)),
        "holes": Cloud(holes),
        "only holes": Cloud(np.full((5, 3), np.nan)),
        "twice": Cloud(np.concatenate([terrain, terrain])),
        "a line": Cloud(np.column_stack([np.arange(100.0), np.zeros(100), np.zeros(100)])),
        "far": Cloud(np.concatenate([terrain, [[1e9, -1e9, 5.0]]])),
    }


@pytest.mark.parametrize("kind", odd_scans())
@pytest.mark.parametrize("colour", [False, True])
def test_odd_scans_are_labelled(tmp_path: Path, kind: str, colour: bool, capsys: pytest.CaptureFixture[str]) -> None:
    cloud = odd_scans()[kind]
    model = weights(tmp_path / "w.safetensors", colour=colour, heights=(3.0, 9.0))
    write_cloud(cloud, tmp_path / "a.ply")
    words = ("segment", tmp_path / "a.ply", "-m", model, "--out", tmp_path / "b.ply", "--html", tmp_path / "b.html")
    code, out, err = fgnn(capsys, *words, "--device", "cpu")
    assert code == 0, err
    labelled = read_cloud(tmp_path / "b.ply")
    assert len(labelled) == len(cloud)
    assert ((labelled.fields["label"] == 255) == ~cloud.valid).all()
    assert f"{len(cloud):,} points" in out
    assert out.splitlines()[-1] == f"next: python -m webbrowser {tmp_path / 'b.html'}"
    assert set(labelled.fields) == {*cloud.fields, "label", "confidence"}


def test_bad_input_gives_one_line_and_leaves_no_file(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cloud(make_terrain(3000), tmp_path / "whole.laz")
    data = (tmp_path / "whole.laz").read_bytes()
    (tmp_path / "cut.laz").write_bytes(data[: len(data) // 2])
    (tmp_path / "junk.ply").write_bytes(b"\x00\x01 junk")
    (tmp_path / "scan.abc").write_text("0 0 0\n")
    scan = tmp_path / "whole.laz"
    before = sorted(p.name for p in tmp_path.iterdir())
    cases = [
        ((tmp_path / "cut.laz", "-m", model), "cut.laz"),
        ((tmp_path / "junk.ply", "-m", model), "junk.ply"),
        ((tmp_path / "scan.abc", "-m", model), "Expected a cloud in"),
        ((tmp_path / "none.laz", "-m", model), "no such file"),
        ((scan, "-m", "lidar-grond"), "no such weights"),
        ((scan, "-m", "deep-map-joint"), "Expected weights of a point network"),
        ((scan, "-m", model, "--votes", "3"), "Expected --votes of 1, 2 or 4"),
        ((scan, "-m", model, "--batch", "0"), "Expected --batch of at least 1"),
        ((scan, "-m", model, "--out", scan), "Expected another file for --out than the scan"),
        ((scan, "-m", model, "--out", tmp_path / "nowhere" / "b.laz"), "no such folder"),
    ]
    for words, message in cases:
        code, _, err = fgnn(capsys, "segment", *words, "--device", "cpu")
        assert code == 2, (words, err)
        assert message in err
        assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_no_output_overwrites_an_input_or_another_output(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = tmp_path / "a.ply"
    write_cloud(make_terrain(200), scan)
    (tmp_path / "link.html").symlink_to(scan)
    (tmp_path / "hard.html").hardlink_to(scan)
    kept = scan.read_bytes(), Path(model).read_bytes()
    out, page = tmp_path / "b.ply", tmp_path / "b.html"
    for words, message in {
        ("--html", scan): "--html than the scan",
        ("--report", scan): "--report than the scan",
        ("--html", tmp_path / "x" / ".." / "a.ply"): "--html than the scan",
        ("--html", tmp_path / "link.html"): "--html than the scan",
        ("--report", tmp_path / "hard.html"): "--report than the scan",
        ("--html", model): "--html than the weights",
        ("--html", out): "--html than --out",
        ("--html", page, "--report", page): "--report than --html",
        ("--html", tmp_path / "nowhere" / "a.html"): "no such folder",
        ("--html", tmp_path): "got a folder",
    }.items():
        code, _, err = fgnn(capsys, "segment", scan, "-m", model, "--out", out, *words, "--device", "cpu")
        assert code == 2, words
        assert message in err
        assert err.count("\n") == 1
    assert kept == (scan.read_bytes(), Path(model).read_bytes())
    assert not out.exists()


def test_a_field_that_the_output_cannot_hold_is_refused_before_the_work(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    terrain = make_terrain(50)
    write_cloud(terrain.with_fields(X=np.arange(50)), tmp_path / "a.npz")
    write_cloud(Cloud(np.concatenate([terrain.xyz, [[np.nan, 0, 0]]])), tmp_path / "hole.npz")
    for name, out, message in (("a", "b.las", "'X'"), ("hole", "b.laz", "finite coordinates")):
        words = ("segment", tmp_path / f"{name}.npz", "-m", model, "--out", tmp_path / out, "--device", "cpu")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fgnn.points.segment._label", lambda *_: pytest.fail("it started to label"))
            code, _, err = fgnn(capsys, *words)
        assert code == 2
        assert message in err
        assert not (tmp_path / out).exists()


def test_escape_sequences_in_class_and_file_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = weights(tmp_path / "w.safetensors", classes=("ground\x1b[31m", "other\n"))
    scan = tmp_path / "a\x1b]0;title\x07.ply"
    write_cloud(make_terrain(50), scan)
    code, out, err = fgnn(capsys, "segment", scan, "-m", path, "--html", tmp_path / "b\x1b.html", "--device", "cpu")
    assert code == 0, err
    assert "\x1b" not in out + err
    assert "\\x1b[31m" in out


def test_parts_of_an_object_are_labelled_by_category(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    network = PointNetwork(TINY, 3, 50, len(CATEGORIES))
    names = [f"{CATEGORIES[c]} {p}" for c, parts in enumerate(PARTS) for p in parts]
    card = {
        "name": "parts", "task": "points", "network": asdict(TINY), "classes": names, "categories": list(CATEGORIES),
        "parts": [list(parts) for parts in PARTS], "features": 3, "inputs": "shape: unit sphere",
        "data": {"shapes": {"root": "nowhere", "points": 128}},
    }  # fmt: skip
    save_weights(tmp_path / "parts.safetensors", network.state_dict(), card)
    write_cloud(make_terrain(300), tmp_path / "a.ply")
    words = ("segment", tmp_path / "a.ply", "-m", tmp_path / "parts.safetensors", "--out", tmp_path / "b.ply")
    code, _, err = fgnn(capsys, *words, "--category", "Chair", "--html", tmp_path / "b.html", "--device", "cpu")
    assert code == 0, err
    assert set(np.unique(read_cloud(tmp_path / "b.ply").fields["label"])) <= set(PARTS[4])
    code, _, err = fgnn(capsys, *words, "--category", "Chairs", "--device", "cpu")
    assert code == 2
    assert "did you mean Chair?" in err
