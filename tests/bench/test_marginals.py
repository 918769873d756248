"""The benchmarks of marginals: errors against references, and speed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fgnn import GraphicalModel, marginals, write_model
from fgnn.bench import marginals as bench
from fgnn.bench import marginals_speed
from fgnn.bench.numpy_messages import numpy_sum_product
from fgnn.bench.uai_references import mar_errors, references
from fgnn.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model with both references, one of them wrong by 0.5 in log10 Z."""
    model = GraphicalModel([2, 3])
    model.add_table((0, 1), np.log(np.arange(1.0, 7.0)).reshape(2, 3))
    place = tmp_path / "uai"
    place.mkdir()
    write_model(model, place / "small.uai")
    answer = marginals(model)
    (place / "small.uai.PR").write_text(f"PR\n{answer.log_partition / np.log(10) + 0.5}\n")
    flat = " ".join(f"{len(p)} " + " ".join(map(str, p)) for p in answer.variables)
    (place / "small.uai.MAR").write_text(f"MAR\n1\n2 {flat}\n")
    return place


def test_errors_are_those_of_the_competition(folder: Path, tmp_path: Path) -> None:
    result = bench.run(folder, out=tmp_path / "out", quiet=True)
    rows = result["instances"]
    assert rows["PR small"]["auto"]["error"] == pytest.approx(0.5, abs=1e-6)
    assert rows["MAR small"]["auto"]["error"] == pytest.approx(0.0, abs=1e-6)
    assert rows["PR small"]["auto"]["exact"]
    assert result["summary"]["PR"]["exact, but not its reference"] == 1
    written = json.loads(Path(result["file"]).read_text())
    assert written["summary"] == result["summary"]


def test_an_archive_is_read_like_a_folder(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "uai.tar.xz"
    with tarfile.open(archive, "w:xz") as members:
        members.add(folder, "uai")
    with references(archive) as found:
        assert [(r.name, r.task) for r in found] == [("small", "PR"), ("small", "MAR")]
        assert [len(p) for p in found[1].marginals()] == [2, 3]


def test_places_without_instances_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    for place in (tmp_path / "text", tmp_path / "missing", tmp_path):
        with pytest.raises(InputError, match=str(place)), references(place):
            pass


def test_hellinger_of_disjoint_distributions_is_one() -> None:
    hellinger, absolute = mar_errors([np.array([1.0, 0.0])], [np.array([0.0, 1.0])])
    assert hellinger == pytest.approx(1.0)
    assert absolute == pytest.approx(1.0)


def test_the_numpy_loop_equals_sum_product() -> None:
    batch = marginals_speed.grid_models(3, 4, seed=0)
    ours = marginals(batch, "sum-product", tolerance=1e-10)
    for b in range(3):
        theirs = numpy_sum_product(batch.model(b), tolerance=1e-10)
        np.testing.assert_allclose(np.stack([p[b].numpy() for p in ours.variables]), theirs, atol=1e-8)


def test_the_speed_bench_writes_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(marginals_speed.CHAINS, "cpu", ((2, 4, 3),))
    monkeypatch.setattr(marginals_speed, "_LOOP_MODELS", 2)
    monkeypatch.setattr(
        marginals_speed, "grid_models", lambda count, side, seed, make=marginals_speed.grid_models: make(4, 3, seed)
    )
    result: dict[str, Any] = marginals_speed.run(out=tmp_path, quiet=True)
    loop = next(r for n, r in result["ratios"].items() if "NumPy" in n)
    assert loop["ratio"] > 0
    assert loop["largest_difference"] < 1e-4
