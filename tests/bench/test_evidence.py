"""Marginals given evidence, against pgmpy and pyAgrum, which read the same file by themselves."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from fgnn import marginals, read_model
from fgnn.bench import evidence
from fgnn.bench.evidence import PEERS, draw_evidence, evidence_ratios

RAIN = """network rain { }
variable Rain { type discrete [ 2 ] { yes, no }; }
variable Sprinkler { type discrete [ 3 ] { off, low, high }; }
variable Grass { type discrete [ 2 ] { wet, dry }; }
probability ( Rain ) {
  table 0.2, 0.8;
}
probability ( Sprinkler | Rain ) {
  (yes) 0.9, 0.07, 0.03;
  (no) 0.5, 0.2, 0.3;
}
probability ( Grass | Sprinkler, Rain ) {
  (off, yes) 0.9, 0.1;
  (off, no) 0.05, 0.95;
  (low, yes) 0.95, 0.05;
  (low, no) 0.6, 0.4;
  (high, yes) 0.99, 0.01;
  (high, no) 0.8, 0.2;
}
"""


def compare(network: Path, peer: str, count: int) -> None:
    pytest.importorskip(peer.lower())
    model, answer = read_model(network), PEERS[peer](network)
    queries = draw_evidence(model, count, seed=1)
    ours = marginals(model, "exact", evidence=queries)
    for q, row in enumerate(queries.tolist()):
        theirs = answer({i: s for i, s in enumerate(row) if s >= 0})
        assert len(theirs) == row.count(-1)
        for i, p in theirs.items():
            np.testing.assert_allclose(ours.variables[i][q].numpy(), p, rtol=0, atol=1e-6)


@pytest.mark.parametrize("peer", sorted(PEERS))
def test_a_small_network_agrees(peer: str, tmp_path: Path) -> None:
    (tmp_path / "rain.bif").write_text(RAIN)
    compare(tmp_path / "rain.bif", peer, 12)


@pytest.mark.data
@pytest.mark.parametrize("peer", sorted(PEERS))
@pytest.mark.parametrize("name", ["alarm", "asia", "sachs"])
def test_networks_of_bnlearn_agree(name: str, peer: str, data_dir: Path, tmp_path: Path) -> None:
    with tarfile.open(data_dir / "map_benchmarks" / "pgmpy_bnlearn_bif.tar") as archive:
        archive.extract(f"bif/{name}.bif.gz", tmp_path, filter="data")
    compare(tmp_path / "bif" / f"{name}.bif.gz", peer, 4)


def test_rows_say_how_many_queries_a_peer_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(network: Path) -> evidence.Answer:
        model = read_model(network)
        return lambda observed: dict(enumerate(marginals(model, "brute-force", evidence=observed).variables))

    def missing(network: Path) -> evidence.Answer:
        raise ImportError("no such package")

    (tmp_path / "rain.bif").write_text(RAIN)
    monkeypatch.setattr(evidence, "PEERS", {"slow": slow, "missing": missing})
    monkeypatch.setattr(evidence, "_QUERIES", 7)
    rows = evidence_ratios(tmp_path / "rain.bif", "cpu", 50, 0, {"slow": 2.0})
    row = rows["marginals of rain, per evidence : slow"]
    assert (row["evidences"], row["peer_queries"], row["expected"]) == (50, 7, 2.0)
    assert row["largest_difference"] < 1e-9
    assert row["ratio"] == pytest.approx(row["peer_ms"] / row["ours_ms"])
    assert rows["marginals of rain, per evidence : missing"] == {"skipped": "no such package"}
