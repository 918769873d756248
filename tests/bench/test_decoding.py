"""`fgnn bench decoding` on small codes, with its peers where they are installed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fgnn.bench.decoding import benchmark as decoding
from fgnn.bench.decoding.measure import Decoder, compare, measure
from fgnn.decoding import Code
from fgnn.errors import InputError

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
    monkeypatch.setattr(decoding, "BURSTS", "small.npy")
    result = decoding.run(data=tmp_path, shots=20, seconds=1.0, out=tmp_path / "out", only=["small*", "*d = 3*"])
    assert Path(result["file"]).is_file()
    rows = result["tables"]["small.npy, 4 dB"]
    assert rows["ours: min-sum, 50"]["shots"] == 1000
    # the same messages, in float32 and in float64
    assert abs(rows["ours: min-sum, 50"]["rate"] - rows["ldpc: min-sum, 50"]["rate"]) < 0.005
    assert rows["ldpc: min-sum, 50"]["shot by shot"]["same answer"] > 0.99
    assert {"PyMatching", "ours: relay"} <= set(result["tables"]["surface code, d = 3, p = 0.005"])
    # a second run measures what it is told to and keeps the rest
    again = decoding.run(data=tmp_path, shots=10, seconds=0.5, out=tmp_path / "out", only=["small.npy, 4*"], quiet=True)
    assert again["tables"]["small.npy, 4 dB"]["ours: min-sum, 50"]["shots"] == 500
    assert again["tables"]["small"] == result["tables"]["small"]
    with pytest.raises(InputError, match="surface code"):
        decoding.run(data=tmp_path, only=["nothing"])


def test_decoders_stop_in_time_and_are_compared_shot_by_shot() -> None:
    truth = np.zeros((1000, 2), np.uint8)

    def slow(a: int, b: int) -> np.ndarray:
        time.sleep(0.02)
        return np.ones((b - a, 2), np.uint8)

    rows = measure({"fast": Decoder(lambda a, b: truth[a:b], 100), "slow": Decoder(slow, 1, "fast")}, truth, 0.2)
    assert rows["slow"]["shots per CPU second"] > 4 * rows["slow"]["shots per second"]  # it slept
    assert rows["fast"]["shots"] == 1000
    assert 0 < rows["slow"]["shots"] < 100
    assert rows["slow"]["shot by shot"]["only theirs wrong"] == rows["slow"]["shots"] == rows["slow"]["errors"]


def test_the_four_outcomes_of_two_decoders_add_up() -> None:
    truth = np.zeros((4, 1), np.uint8)
    theirs, ours = np.array([[0], [0], [1], [1]]), np.array([[0], [1], [0], [1]])
    found = compare(theirs, ours, truth)
    assert (found["both wrong"], found["only ours wrong"], found["only theirs wrong"]) == (1, 1, 1)
    assert found["same answer"] == 0.5


def test_sionna_is_told_the_number_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from fgnn.bench.decoding import codes

    places: list[str] = []
    stub: Any = ModuleType("sionna.phy.fec.ldpc")
    stub.LDPCBPDecoder = lambda *_, device, **__: places.append(device)
    for name in ("sionna", "sionna.phy", "sionna.phy.fec"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.setattr(codes, "peer", lambda name: stub)
    for device in ("cuda", "cpu"):
        assert codes._sionna(Code.of(np.ones((1, 3))), device) is not None
    assert places == ["cuda:0", "cpu"]
