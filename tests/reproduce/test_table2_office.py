"""Table 2 on a real office in the raw layout of the release, with generated rooms of the other areas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fgnn.cli import build_app
from fgnn.data.s3dis import Room, save_room
from fgnn.data.scenes import make_room
from tests.data.test_real_office import write_release


@pytest.mark.data
@pytest.mark.slow
def test_the_command_runs_from_the_releases_layout_to_the_table(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(data_dir / "scans" / "s3dis_room.npz") as data:
        xyz, label, instance = data["xyz_mm"] / 1000.0, *(data[name].astype(np.int64) for name in ("label", "instance"))
    corner = np.flatnonzero((xyz[:, :2] < 2.0).all(1))[::20]
    release = tmp_path / "S3DIS"
    write_release(xyz[corner], label[corner], instance[corner], release / "Area_5" / "office_1")
    for area in (1, 3):
        room = make_room(f"Area_{area}_office_1", seed=area, density=60)
        near = (room.xyz[:, :2] < 1.7).all(1)
        save_room(Room(room.name, room.xyz[near], room.rgb[near], room.label[near]), release)
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "table2", "--data", str(release), "--quick", "--device", "cpu"]
    done = CliRunner().invoke(build_app(), command)
    assert done.exit_code == 0, done.output
    assert "areas 1, 3, 5" in done.output
    for protocol in ("pn-sampled", "all-points", "voted"):
        assert f"FGNN, ours, {protocol}" in done.output
    page = (tmp_path / "out" / "table2.html").read_text(encoding="utf-8")
    assert "these numbers are not those of the benchmark" in page
