"""Decoders against their peers on the same shots: error rates with intervals, and shots per second of one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.bench.anytime.instances import data_folder
from fgnn.bench.common import describe, number, show, write_result
from fgnn.decoding import AWGN, Code, ErrorRate, Problem, decode, noise_of, read_circuit, read_code, sample_circuit
from fgnn.decoding.circuit import parse_dem
from fgnn.errors import need
from fgnn.runtime.environment import environment

Answer = NDArray[Any]  # observables, or words
CODES = ("aff3ct_CCSDS_64_128.alist",)
CIRCUITS = ("bb_72_12_6_memory_Z_p0.003", "bb_144_12_12_memory_Z_p0.003")


def run(
    device: str = "cpu",
    seed: int = 0,
    out: str | Path | None = None,
    *,
    data: Path | None = None,
    shots: int = 2000,
    peer_seconds: float = 30.0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Decode codes and circuits with one thread, print the tables and write them as JSON.

    Args:
        device: Of ours; peers always run on a CPU.
        data: A folder with ``ldpc`` and ``quantum``.
        shots: Shots of each circuit; codes have fifty times as many words.
        peer_seconds: Peers decode the first shots, as many as this allows; rates of ours are given for those as well.
    """
    folder = data_folder(data)
    result: dict[str, Any] = {"benchmark": "decoding", "environment": environment(device), "seed": seed, "tables": {}}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in CODES:
            result["tables"][f"{name}, 4 dB"] = _code(folder / "ldpc" / name, 50 * shots, seed, device, peer_seconds)
        for name in CIRCUITS:
            file = folder / "quantum" / f"{name}.stim.xz"
            problem = read_circuit(file)
            syndromes, observables = sample_circuit(file, shots, seed)
            result["tables"][name] = _circuit(problem, syndromes, observables, device, peer_seconds)
        for distance in (3, 5, 7):
            name, rows = _surface(distance, 10 * shots, seed, device, peer_seconds)
            result["tables"][name] = rows
    finally:
        torch.set_num_threads(threads)
    if not quiet:
        _print(result)
    result["file"] = str(write_result(f"decoding-{torch.device(device).type}", result, out))
    return result


def _ours(
    ways: dict[str, dict[str, Any]], problem: Code | Problem, received: Answer, truth: Answer, device: str
) -> dict[str, Any]:
    rows = {}
    for name, options in ways.items():
        keep = isinstance(problem, Code)
        decode(problem, received[:8], device=device, keep_words=keep, **options)  # compiles
        start = time.perf_counter()
        found = decode(problem, received, device=device, keep_words=keep, **options)
        answer = found.words if found.observables is None else found.observables
        rows[f"ours: {name}"] = _row(answer, truth, time.perf_counter() - start)
    return rows


def _peer(decode_one: Callable[[int], Answer], truth: Answer, seconds: float) -> dict[str, Any]:
    """Decode shot by shot, as these packages do, for a while."""
    start, answers = time.perf_counter(), []
    for k in range(len(truth)):
        answers.append(decode_one(k))
        if time.perf_counter() - start > seconds:
            break
    return _row(np.array(answers), truth[: len(answers)], time.perf_counter() - start)


def _row(answer: Answer, truth: Answer, seconds: float) -> dict[str, Any]:
    wrong = answer != truth
    rate = ErrorRate(len(truth), int(wrong.any(1).sum()), int(wrong.sum()), truth.shape[1], seconds=seconds)
    return {
        **asdict(rate), "rate": rate.rate, "interval": rate.interval(), "shots per second": len(truth) / seconds,
        "first shots": {str(n): float(wrong[:n].any(1).mean()) for n in (100, 1000, 10_000) if n < len(truth)},
    }  # fmt: skip


def _code(file: Path, words: int, seed: int, device: str, seconds: float) -> dict[str, Any]:
    code = read_code(file)
    llr = AWGN(noise_of(4.0, code.rate)).llr(np.zeros((words, code.num_bits), np.uint8), np.random.default_rng(seed))
    truth = np.zeros((words, code.num_bits), np.uint8)
    ways: dict[str, dict[str, Any]] = {
        "min-sum, 50": {"method": "min-sum", "iterations": 50, "scale": 1.0},
        "sum-product, 50": {"method": "sum-product", "iterations": 50},
        "sum-product, 50, + OSD-CS 10": {"method": "osd", "rule": "sum-product", "iterations": 50, "order": 10},
        "relay, 20 legs": {"method": "relay", "legs": 20},
    }
    rows = _ours(ways, code, llr, truth, device)
    ldpc = need("ldpc")
    hard, matrix = (llr < 0).astype(np.uint8), code.matrix()
    syndromes = code.syndrome(hard)
    p = 1 / (1 + np.exp(np.abs(llr).astype(np.float64)))

    def channel(decoder: Any) -> Callable[[int], Answer]:
        def one(k: int) -> Answer:
            decoder.update_channel_probs(np.clip(p[k], 1e-15, 0.5))
            found: Answer = np.asarray(decoder.decode(syndromes[k])) ^ hard[k]
            return found

        return one

    first = [0.1] * code.num_bits
    bp = {"error_channel": first, "max_iter": 50}
    peers = {
        "ldpc: min-sum, 50": ldpc.BpDecoder(matrix, bp_method="minimum_sum", ms_scaling_factor=1.0, **bp),
        "ldpc: sum-product, 50": ldpc.BpDecoder(matrix, bp_method="product_sum", **bp),
        "ldpc: sum-product, 50, + OSD-CS 10": ldpc.BpOsdDecoder(
            matrix, bp_method="product_sum", osd_method="osd_cs", osd_order=10, **bp
        ),
    }
    return rows | {name: _peer(channel(decoder), truth, seconds) for name, decoder in peers.items()}


def _circuit(problem: Problem, syndromes: Answer, truth: Answer, device: str, seconds: float) -> dict[str, Any]:
    kept = syndromes if problem.kept is None else np.ascontiguousarray(syndromes[:, problem.kept])
    ways: dict[str, dict[str, Any]] = {
        "min-sum, 80": {"method": "min-sum", "iterations": 80, "scale": 0.0},
        "min-sum, 80, + OSD-CS 10": {"method": "osd", "iterations": 80, "order": 10},
        "relay": {"method": "relay"},
    }
    rows = _ours(ways, problem, kept, truth, device)
    ldpc, relay = need("ldpc"), need("relay_bp")
    matrix, p = problem.code.matrix(), 1 / (1 + np.exp(problem.prior))
    setting = {"error_channel": list(p), "max_iter": 80, "bp_method": "minimum_sum", "ms_scaling_factor": 0.0}
    peers: dict[str, Any] = {
        "ldpc: min-sum, 80": ldpc.BpDecoder(matrix, **setting),
        "ldpc: min-sum, 80, + OSD-CS 10": ldpc.BpOsdDecoder(matrix, osd_method="osd_cs", osd_order=10, **setting),
        "relay-bp": relay.RelayDecoderF32(
            _sparse(matrix), error_priors=p, gamma0=0.125, pre_iter=80, num_sets=300, set_max_iter=60,
            gamma_dist_interval=(-0.24, 0.66), stop_nconv=5,
        ),
    }  # fmt: skip
    return rows | {name: _peer(_flipped(problem, decoder, kept), truth, seconds) for name, decoder in peers.items()}


def _flipped(problem: Problem, decoder: Any, syndromes: Answer) -> Callable[[int], Answer]:
    return lambda k: problem.flips(decoder.decode(syndromes[k])[None])[0]


def _sparse(matrix: Answer) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(matrix)


def _surface(distance: int, shots: int, seed: int, device: str, seconds: float) -> tuple[str, dict[str, Any]]:
    """A rotated surface code under circuit noise of 0.5 %, beside minimum-weight matching."""
    stim, pymatching = need("stim"), need("pymatching")
    p = 0.005
    circuit = stim.Circuit.generated(
        "surface_code:rotated_memory_z", distance=distance, rounds=distance, after_clifford_depolarization=p,
        before_measure_flip_probability=p, after_reset_flip_probability=p, before_round_data_depolarization=p,
    )  # fmt: skip
    syndromes, truth = circuit.compile_detector_sampler(seed=seed).sample(shots, separate_observables=True)
    problem = parse_dem(str(circuit.detector_error_model()))
    syndromes, truth = syndromes.astype(np.uint8), truth.astype(np.uint8)
    rows = _circuit_ours(problem, syndromes, truth, device)
    dem = circuit.detector_error_model(decompose_errors=True)
    for name, correlated in (("PyMatching", False), ("PyMatching, correlated", True)):
        options = {"enable_correlations": True} if correlated else {}
        matching = pymatching.Matching.from_detector_error_model(dem, **options)
        start = time.perf_counter()
        answer = matching.decode_batch(syndromes, **options)
        rows[name] = _row(answer, truth, time.perf_counter() - start)
    return f"surface code, d = {distance}, p = {p}", rows


def _circuit_ours(problem: Problem, syndromes: Answer, truth: Answer, device: str) -> dict[str, Any]:
    ways: dict[str, dict[str, Any]] = {
        "min-sum, 30, + OSD-CS 10": {"method": "osd", "iterations": 30, "order": 10},
        "relay": {"method": "relay"},
    }
    few = max(1, len(truth) // 10)  # belief propagation rarely converges here, so that these are slow
    return _ours(ways, problem, syndromes[:few], truth[:few], device)


def _print(result: dict[str, Any]) -> None:
    print(describe(result["environment"]))
    for title, rows in result["tables"].items():
        table = [
            (name, str(row["shots"]), f"{row['rate']:.2e}", "{:.1e} - {:.1e}".format(*row["interval"]),
             number(row["shots per second"]))
            for name, row in rows.items()
        ]  # fmt: skip
        show(title, ("decoder", "shots", "error rate", "95 %", "shots/s"), table)
