"""`fgnn bench decoding` on small codes, with its peers where they are installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fgnn.bench import decoding

for name in ("numba", "stim", "ldpc", "relay_bp", "pymatching"):
    pytest.importorskip(name)


def test_every_decoder_is_counted_on_the_same_shots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stim

    (tmp_path / "ldpc").mkdir()
    (tmp_path / "quantum").mkdir()
    h = np.zeros((6, 12), np.uint8)
    for c in range(6):
        h[c, [2 * c, 2 * c + 1, (2 * c + 3) % 12, (2 * c + 6) % 12]] = 1
    np.save(tmp_path / "ldpc" / "small.npy", h)
    circuit = stim.Circuit.generated(
        "repetition_code:memory", rounds=2, distance=3, before_round_data_depolarization=0.1
    )
    import lzma

    (tmp_path / "quantum" / "small.stim.xz").write_bytes(lzma.compress(str(circuit).encode()))
    monkeypatch.setattr(decoding, "CODES", ("small.npy",))
    monkeypatch.setattr(decoding, "CIRCUITS", ("small",))
    result = decoding.run(data=tmp_path, shots=20, peer_seconds=1.0, out=tmp_path / "out", quiet=False)
    assert Path(result["file"]).is_file()
    rows = result["tables"]["small.npy, 4 dB"]
    assert rows["ours: min-sum, 50"]["shots"] == 1000
    # the same messages, in float32 and in float64
    assert abs(rows["ours: min-sum, 50"]["rate"] - rows["ldpc: min-sum, 50"]["rate"]) < 0.005
    assert {"PyMatching", "ours: relay"} <= set(result["tables"]["surface code, d = 3, p = 0.005"])
