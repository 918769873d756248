"""`fgnn train`, `evaluate` and `segment` on a folder of labelled scans with a classes file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fgnn.data.scenes import make_terrain
from fgnn.errors import InputError
from fgnn.points.cloud import Cloud, read_cloud, write_cloud
from fgnn.tasks.scan_folder import is_scan_folder, scan_recipe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "plots"
    place.mkdir()
    for seed in range(3):
        write_cloud(make_terrain(3000, seed=seed), place / f"plot{seed}.laz")
    (place / "classes.txt").write_text("ground: 2\nother: 5 6\n")
    return place


def test_the_recipe_is_inferred_from_the_files(folder: Path) -> None:
    assert is_scan_folder(folder)
    recipe = scan_recipe(folder)
    data = recipe.data.scans
    assert data is not None
    assert (recipe.name, data.field, data.colour) == ("plots", "classification", False)
    assert 28 <= data.size <= 36  # four points a square metre: 4,096 on 32 m by 32 m


def test_colour_is_used_if_every_scan_has_it_and_label_comes_first(tmp_path: Path) -> None:
    for seed in range(2):
        cloud = make_terrain(500, seed=seed)
        rgb = {name: np.full(500, 100, np.uint8) for name in ("red", "green", "blue")}
        write_cloud(Cloud(cloud.xyz, {**cloud.fields, **rgb, "label": cloud.fields["classification"]}),
                    tmp_path / f"a{seed}.ply")  # fmt: skip
    (tmp_path / "classes.txt").write_text("ground: 2\nother: 5 6\n")
    data = scan_recipe(tmp_path).data.scans
    assert data is not None
    assert (data.field, data.colour) == ("label", True)


def test_unusable_folders_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    (one / "classes.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match=r"two or more labelled scans.*got 0"):
        scan_recipe(one)
    write_cloud(Cloud(np.zeros((3, 3)), {"intensity": np.zeros(3)}), folder / "plot9.ply")
    with pytest.raises(InputError, match="Expected a field label or classification or class"):
        scan_recipe(folder)


@pytest.mark.slow
def test_train_evaluate_and_segment_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    def fgnn(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fgnn", *words], capture_output=True, text=True, cwd=tmp_path, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    fgnn("train", "plots", "--device", "cpu", "--time-budget", "4")
    metrics = json.loads(fgnn("evaluate", "runs/plots", "--json", "--device", "cpu").splitlines()[-1])
    assert {"mean IoU", "accuracy", "ground", "other"} <= metrics["tiles"].keys()
    out = fgnn("segment", "plots/plot2.laz", "--model", "runs/plots", "--out", "done.laz", "--html", "done.html",
               "--device", "cpu")  # fmt: skip
    assert "3,000 points" in out
    done = read_cloud(tmp_path / "done.laz")
    assert {"classification", "label", "confidence"} <= done.fields.keys()
    assert (tmp_path / "done.html").stat().st_size > 10_000
