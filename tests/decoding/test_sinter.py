"""The decoders that sinter calls."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fgnn.decoding import sinter_decoders

for name in ("numba", "stim", "sinter"):
    pytest.importorskip(name)


def test_sinter_collects_with_our_decoders() -> None:
    import sinter
    import stim

    circuit = stim.Circuit.generated(
        "repetition_code:memory", rounds=3, distance=5, before_round_data_depolarization=0.05
    )
    decoders = sinter_decoders(iterations=20)
    dem = circuit.detector_error_model()
    detectors, observables = circuit.compile_detector_sampler(seed=1).sample(400, separate_observables=True)
    packed = np.packbits(detectors, axis=1, bitorder="little")
    for name, decoder in decoders.items():
        compiled = decoder.compile_decoder_for_dem(dem=dem)
        found = compiled.decode_shots_bit_packed(bit_packed_detection_event_data=packed)
        wrong = np.unpackbits(found, axis=1, bitorder="little")[:, :1] != observables
        assert wrong.mean() < 0.05, name
    tasks = [sinter.Task(circuit=circuit, json_metadata={"d": 5})]
    options = {"decoders": ["fgnn-relay"], "custom_decoders": decoders, "max_shots": 500}
    (stats,) = sinter.collect(num_workers=1, tasks=tasks, **options)
    assert stats.shots == 500
    assert stats.errors < 25


def test_decoders_can_be_sent_to_worker_processes() -> None:
    assert set(pickle.loads(pickle.dumps(sinter_decoders()))) == {"fgnn-min-sum", "fgnn-relay", "fgnn-osd"}
