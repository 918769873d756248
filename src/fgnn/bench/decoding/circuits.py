"""Quantum circuits beside `ldpc` and `relay-bp`, and surface codes beside PyMatching."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fgnn.bench.decoding.measure import Answer, Decoder, measure, one_by_one, ours, peer
from fgnn.decoding import Problem, read_circuit, sample_circuit
from fgnn.decoding.circuit import parse_dem
from fgnn.errors import need

_SURFACE_NOISE = 0.005


def circuit_table(file: Path, shots: int, seed: int, device: str, seconds: float) -> dict[str, Any]:
    """A bivariate bicycle code, one basis."""
    problem = read_circuit(file)
    syndromes, truth = sample_circuit(file, shots, seed)
    kept = syndromes if problem.kept is None else np.ascontiguousarray(syndromes[:, problem.kept])
    ways: dict[str, dict[str, Any]] = {
        "min-sum, 80": {"method": "min-sum", "iterations": 80, "scale": 0.0},
        "min-sum, 80, + OSD-CS 10": {"method": "osd", "iterations": 80, "order": 10},
        "relay": {"method": "relay"},
    }
    decoders = {f"ours: {name}": ours(problem, kept, device, **way) for name, way in ways.items()}
    return measure(decoders | _peers(problem, kept), truth, seconds)


def _peers(problem: Problem, syndromes: Answer) -> dict[str, Decoder]:
    from scipy.sparse import csr_matrix

    matrix, p = problem.code.matrix(), 1 / (1 + np.exp(problem.prior))
    setting = {"error_channel": list(p), "max_iter": 80, "bp_method": "minimum_sum", "ms_scaling_factor": 0.0}
    peers: dict[str, tuple[Any, str]] = {}
    if (ldpc := peer("ldpc")) is not None:
        osd = ldpc.BpOsdDecoder(matrix, osd_method="osd_cs", osd_order=10, **setting)
        peers["ldpc: min-sum, 80"] = ldpc.BpDecoder(matrix, **setting), "ours: min-sum, 80"
        peers["ldpc: min-sum, 80, + OSD-CS 10"] = osd, "ours: min-sum, 80, + OSD-CS 10"
    if (relay := peer("relay_bp")) is not None:
        decoder = relay.RelayDecoderF32(
            csr_matrix(matrix), error_priors=p, gamma0=0.125, pre_iter=80, num_sets=300, set_max_iter=60,
            gamma_dist_interval=(-0.24, 0.66), stop_nconv=5,
        )  # fmt: skip
        peers["relay-bp"] = decoder, "ours: relay"

    def flips(decoder: Any) -> Callable[[int], Answer]:
        return lambda k: problem.flips(decoder.decode(syndromes[k])[None])[0]

    return {name: one_by_one(flips(decoder), like) for name, (decoder, like) in peers.items()}


def surface_table(distance: int, shots: int, seed: int, device: str, seconds: float) -> dict[str, Any]:
    """A rotated surface code under circuit noise, beside minimum-weight matching."""
    stim, pymatching = need("stim"), peer("pymatching")
    p = _SURFACE_NOISE
    circuit = stim.Circuit.generated(
        "surface_code:rotated_memory_z", distance=distance, rounds=distance, after_clifford_depolarization=p,
        before_measure_flip_probability=p, after_reset_flip_probability=p, before_round_data_depolarization=p,
    )  # fmt: skip
    seen, flipped = circuit.compile_detector_sampler(seed=seed).sample(shots, separate_observables=True)
    syndromes, truth = seen.astype(np.uint8), flipped.astype(np.uint8)
    problem = parse_dem(str(circuit.detector_error_model()))
    decoders = {
        "ours: relay": ours(problem, syndromes, device, 256 if device == "cpu" else 1 << 13, method="relay"),
        "ours: min-sum, 30, + OSD-CS 10": ours(problem, syndromes, device, method="osd", iterations=30, order=10),
    }
    dem = circuit.detector_error_model(decompose_errors=True)
    ways: dict[str, dict[str, Any]] = {"PyMatching": {}, "PyMatching, correlated": {"enable_correlations": True}}
    for name, options in ways.items() if pymatching is not None else ():
        matching = pymatching.Matching.from_detector_error_model(dem, **options)

        def answer(a: int, b: int, matching: Any = matching, options: Any = options) -> Answer:
            return np.asarray(matching.decode_batch(syndromes[a:b], **options))

        decoders[name] = Decoder(answer, 4096, "ours: relay")
    return measure(decoders, truth, seconds)
