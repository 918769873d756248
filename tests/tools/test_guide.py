"""The models of the guide, and the measurement of what it gains."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fgnn.bench.anytime import families

pytest.importorskip("numba")

from tools import guide_gain
from tools.guide_models import main, structures


def test_models_of_every_structure_are_written_and_the_seed_determines_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        main(tmp_path / name, grids=1, graphs=1, seed=3)
    one, two = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert len(one) == len(structures(np.random.default_rng(3)))
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


def test_the_gain_is_guided_minus_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guide_gain, "FAMILIES", {"tiny": ("trained on", partial(families.glass, 6))})
    guide_gain.main(seeds=2, at=[0.02, 0.05], out=tmp_path / "guide.json")
    row = json.loads((tmp_path / "guide.json").read_text())["families"]["tiny"]
    assert row["weights"] == "guide-pairs"
    change = np.array(row["guided"]) - np.array(row["plain"])
    assert row["gain"] == pytest.approx(change.mean(0).tolist())
    assert row["better"] == (change > 1e-9).sum(0).tolist()
