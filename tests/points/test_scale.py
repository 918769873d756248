"""Labelling ten million points takes no more memory than labelling a small scan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fgnn.data.scenes import write_terrain
from fgnn.points.cloud import open_cloud

_LABEL = """
import resource, sys
import numpy as np
from fgnn.points.ground_fusion import FEATURES, GroundFusion
from fgnn.points.segment import Segmenter, segment_file

def low(features):
    high = features[..., 8] > 1.0  # arcsinh of the height above the widest levelled opening
    return np.stack([~high, high], axis=-1).astype(np.float32)

# every step of the labelling by lidar-aerial but its network
rule = Segmenter(
    low, ("ground", "other"), size=64.0, scale=5.0, heights=(3.0, 12.0, 24.0), thin=0.64, votes=1,
    fusion=GroundFusion(tuple(float(name == "logit") for name in FEATURES)),
)
counts, _ = segment_file(sys.argv[1], sys.argv[2], rule)
print(sum(counts.values()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def label(folder: Path, points: int) -> tuple[int, float]:
    """Points labelled, and peak resident memory in MB."""
    write_terrain(folder / "a.laz", points, seed=2)
    command = [sys.executable, "-c", _LABEL, str(folder / "a.laz"), str(folder / "b.laz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, kilobytes = done.stdout.split()
    return int(count), int(kilobytes) / 1000


def agreement(folder: Path) -> float:
    right = total = 0
    for part in open_cloud(folder / "b.laz").chunks():
        right += int(((part.fields["classification"] == 2) == (part.fields["label"] == 0)).sum())
        total += len(part)
    return right / total


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_million_points_take_no_more_memory_than_two(tmp_path: Path) -> None:
    counts, peaks = zip(*(label(tmp_path, n) for n in (2_000_000, 10_000_000)), strict=True)
    assert counts == (2_000_000, 10_000_000)
    assert agreement(tmp_path) > 0.9
    assert peaks[1] < 2000
    # sorting one chunk of the file may touch every page of the store
    assert peaks[1] < peaks[0] + 500


def test_pages_of_a_mapped_scan_are_released(tmp_path: Path) -> None:
    """Otherwise they count as memory in use until the whole scan is read."""
    write_terrain(tmp_path / "a.npy", 600_000, seed=3)  # 27 bytes a point
    reader, code = tmp_path / "a.npy", "Rss:"
    sizes = []
    for _ in open_cloud(reader).chunks(50_000):
        with open("/proc/self/smaps", encoding="ascii") as maps:
            text = maps.read()
        own = text[text.index(str(reader)) :]
        sizes.append(int(own[own.index(code) + len(code) :].split()[0]))  # kB
    assert len(sizes) == 12
    assert max(sizes) < 27 * 600_000 / 1000 / 3


def test_the_order_of_points_is_kept(tmp_path: Path) -> None:
    label(tmp_path, 60_000)
    before, after = (list(open_cloud(tmp_path / name).chunks(7_000)) for name in ("a.laz", "b.laz"))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old.xyz, new.xyz)
    assert agreement(tmp_path) > 0.9
