"""The ground filter: training by folds, shipped weights, and the table beside classical filters."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fgnn.data.ground import FOLDS, GROUND, OTHER, SAMPLES, UNKNOWN, read_samples
from fgnn.data.labelled import Classes
from fgnn.data.scan_copies import altered, scan_versions
from fgnn.data.scenes import terrain_strips
from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, read_cloud, write_cloud
from fgnn.points.segment_pieces import Cut
from fgnn.reproduce.experiment import Setting
from fgnn.reproduce.ground import PUBLISHED, reproduce_ground
from fgnn.weights import load_weights
from tools.make_ground_data import prepare, read_vendor
from tools.ship import ship_file
from tools.train_ground import train_ground


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small generated scans under the names of the fifteen samples."""
    place = tmp_path_factory.mktemp("lidar")
    for seed, name in enumerate(SAMPLES):
        scan = next(terrain_strips(700, seed=seed, density=0.5))
        label = np.where(scan.fields["classification"] == 2, GROUND, OTHER).astype(np.uint8)
        write_cloud(Cloud(scan.xyz, {"classification": label}), place / f"{name}.npz")
    (place / "classes.txt").write_text("ground: 2\nother: 1\n")
    return place


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folds, trained for a few steps by the packaged recipe on smaller pieces."""
    out = tmp_path_factory.mktemp("out")
    changes = ["steps=20", "batch=4", "log_every=5", "checkpoint_every=5", "data.scans.points=256"]
    changes += ["data.scans.heights=[3, 12]", "data.scans.size=30", "data.scans.copies=1"]
    train_ground(folder, out, device="cpu", folds=[0, 1], changes=changes)
    return out


def test_the_folds_hold_out_every_sample_once() -> None:
    assert sorted(name for fold in FOLDS for name in fold) == sorted(SAMPLES)
    for fold in FOLDS:  # town and country in each
        assert {name[4] in "1234" for name in fold} == {True, False}


def test_each_fold_is_tested_on_its_held_out_samples(trained: Path) -> None:
    figures = json.loads((trained / "ground.json").read_text())
    assert set(figures["samples"]) == {*FOLDS[0], *FOLDS[1]}
    card = load_weights(trained / "lidar-ground.safetensors").card
    assert card["name"] == "lidar-ground"
    assert card["data"]["scans"]["held_out"] == [f"{name}.npz" for name in FOLDS[0]]
    assert set(card["results"]) == set(FOLDS[0])
    assert card["cross_validation"] == figures
    totals = [s["total"] for s in figures["samples"].values()]
    assert figures["mean_total"] == pytest.approx(np.mean(totals))
    assert all(s["points"] == 700 for s in figures["samples"].values())
    assert str(trained) not in json.dumps(card["data"])


def test_shipped_weights_label_a_scan_by_name_and_show_it(trained: Path, folder: Path, tmp_path: Path) -> None:
    path = ship_file(trained / "lidar-ground.safetensors", "my-ground", tmp_path, command="how", bf16=False)
    card = load_weights(path).card
    assert (card["name"], card["command"]) == ("my-ground", "how")
    command = [
        sys.executable, "-m", "fgnn", "segment", str(folder / "samp11.npz"), "--weights", str(path), "--votes", "2",
        "--out", str(tmp_path / "a.npz"), "--html", str(tmp_path / "a.html"), "--device", "cpu",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert set(read_cloud(tmp_path / "a.npz").fields) == {"classification", "label", "confidence"}
    assert "my-ground" in (tmp_path / "a.html").read_text() or (tmp_path / "a.html").stat().st_size > 10_000


def test_the_table_measures_held_out_samples_and_records_the_rest(trained: Path, folder: Path, tmp_path: Path) -> None:
    setting = Setting(data=str(folder), run=str(trained / "lidar-ground.safetensors"))
    result = reproduce_ground(setting, tmp_path, lambda text: None)
    cells = json.loads((tmp_path / "ground.json").read_text())["cells"]
    ours = {c["sample"]: c for c in cells if c["filter"] == "fgnn"}
    assert {n for n, c in ours.items() if c["origin"] == "measured"} == set(FOLDS[0])
    assert {n for n, c in ours.items() if c["origin"] == "recorded"} == set(FOLDS[1])
    recorded = load_weights(trained / "lidar-ground.safetensors").card["results"]
    for name in FOLDS[0]:  # the same network on the same points
        assert ours[name]["score"]["total"] == pytest.approx(recorded[name]["total"], abs=0.01)
    shown = result.tables[1].text()
    assert all(name in shown for name, *_ in PUBLISHED)
    with pytest.raises(InputError, match="Expected --data"):
        reproduce_ground(Setting(), tmp_path, lambda text: None)
    with pytest.raises(InputError, match=r"samp11\.npz"):
        reproduce_ground(replace(setting, data=str(tmp_path)), tmp_path, lambda text: None)


def test_copies_keep_labels_and_differ(folder: Path) -> None:
    cloud = read_cloud(folder / "samp21.npz")
    tagged = Cloud(cloud.xyz, {**cloud.fields, "tag": np.arange(len(cloud))})
    copies = [altered(tagged, "classification", np.random.default_rng(s), stray=OTHER) for s in range(4)]
    for copy in copies:
        before = tagged.fields["classification"][copy.fields["tag"]]
        changed = copy.fields["classification"] != before
        assert changed.mean() < 0.02
        assert (copy.fields["classification"][changed] == OTHER).all()
    assert not np.allclose(copies[0].xyz[:5], copies[1].xyz[:5])
    again = altered(tagged, "classification", np.random.default_rng(0), stray=OTHER)
    np.testing.assert_array_equal(again.xyz, copies[0].xyz)


def test_versions_do_not_depend_on_the_number_of_processes(folder: Path) -> None:
    classes = Classes.read(folder / "classes.txt")
    files = [folder / f"{name}.npz" for name in SAMPLES[:4]]
    cut = Cut(size=30.0, points=64, scale=5.0)
    several = scan_versions(files, classes, "classification", cut, copies=3, stray=OTHER)
    alone = [scan_versions([f], classes, "classification", cut, copies=3, stray=OTHER)[0] for f in files]
    for a, b in zip(several, alone, strict=True):
        assert a.features.equal(b.features)
        assert a.label.equal(b.label)


@pytest.mark.data
def test_the_real_scans_become_a_folder_to_train_on(data_dir: Path, tmp_path: Path) -> None:
    names = prepare(data_dir / "scans", tmp_path)
    assert set(SAMPLES) < set(names)
    assert len(names) == 18
    samples = read_samples(data_dir / "scans" / "isprs_filtertest_ground.npz")
    back = read_cloud(tmp_path / "samp11.npz")
    np.testing.assert_array_equal(back.fields["classification"], samples["samp11"].fields["classification"])
    autzen = read_vendor(data_dir / "scans" / "laspy_autzen_trim.laz")
    assert np.ptp(autzen.xyz[:, 0]) < 400  # feet became metres
    share = {c: float((autzen.fields["classification"] == c).mean()) for c in (UNKNOWN, OTHER, GROUND)}
    assert share[UNKNOWN] > 0.3  # what lies on the ground but is not labelled so
    assert share[GROUND] > 0.2
