"""Codes over a noisy channel, beside `ldpc`, and 5G's base graph beside Sionna."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fgnn.bench.decoding.measure import Answer, Decoder, measure, one_by_one, ours, peer
from fgnn.decoding import AWGN, Bursts, Channel, Code, noise_of, read_code


def words_of(code: Code, channel: Channel, count: int, seed: int) -> Answer:
    """Log-likelihood ratios of zeros that were sent."""
    llr = channel.llr(np.zeros((count, code.num_bits), np.uint8), np.random.default_rng(seed))
    llr[:, : code.hidden] = 0
    return llr


def code_table(file: Path, words: int, seed: int, device: str, seconds: float, weights: str) -> dict[str, Any]:
    """A short code at 4 dB, word by word beside `ldpc`."""
    code = read_code(file)
    llr = words_of(code, AWGN(noise_of(4.0, code.rate)), words, seed)
    ways: dict[str, dict[str, Any]] = {
        "min-sum, 50": {"method": "min-sum", "iterations": 50, "scale": 1.0},
        "sum-product, 50": {"method": "sum-product", "iterations": 50},
        "sum-product, 100": {"method": "sum-product", "iterations": 100},
        "sum-product, 50, + OSD-CS 10": {"method": "osd", "rule": "sum-product", "iterations": 50, "order": 10},
        "sum-product, 50, + OSD-CS 60": {"method": "osd", "rule": "sum-product", "iterations": 50, "order": 60},
        "min-sum × 0.625, 50, + OSD-CS 60": {"method": "osd", "iterations": 50, "scale": 0.625, "order": 60},
        "relay, 20 legs": {"method": "relay", "legs": 20},
    }
    if weights:
        ways["fgnn"] = {"method": "fgnn", "weights": weights}
    decoders = {
        f"ours: {name}": ours(code, llr, device, 4096 if options["method"] == "osd" else None, **options)
        for name, options in ways.items()
    }
    return measure(decoders | _ldpc(code, llr), np.zeros((words, code.num_bits), np.uint8), seconds)


def _ldpc(code: Code, llr: Answer) -> dict[str, Decoder]:
    ldpc = peer("ldpc")
    if ldpc is None:
        return {}
    hard, matrix = (llr < 0).astype(np.uint8), code.matrix()
    syndromes = code.syndrome(hard)

    def channel(decoder: Any) -> Callable[[int], Answer]:
        def one(k: int) -> Answer:
            p = 1 / (1 + np.exp(np.abs(llr[k]).astype(np.float64)))
            decoder.update_channel_probs(np.clip(p, 1e-15, 0.5))
            found: Answer = np.asarray(decoder.decode(syndromes[k])) ^ hard[k]
            return found

        return one

    bp = {"error_channel": [0.1] * code.num_bits, "max_iter": 50}
    sums, minima = {"bp_method": "product_sum", **bp}, {"bp_method": "minimum_sum", **bp}
    sweep, most = (
        {"osd_method": "osd_cs"},
        code.dimension,
    )  # ldpc never returns from a sweep over more bits than there are
    peers = {
        "min-sum, 50": ldpc.BpDecoder(matrix, ms_scaling_factor=1.0, **minima),
        "sum-product, 50": ldpc.BpDecoder(matrix, **sums),
        "sum-product, 50, + OSD-CS 10": ldpc.BpOsdDecoder(matrix, osd_order=min(10, most), **sweep, **sums),
        "sum-product, 50, + OSD-CS 60": ldpc.BpOsdDecoder(matrix, osd_order=min(60, most), **sweep, **sums),
        "min-sum × 0.625, 50, + OSD-CS 60": ldpc.BpOsdDecoder(
            matrix, osd_order=min(60, most), ms_scaling_factor=0.625, **sweep, **minima
        ),
    }
    return {f"ldpc: {name}": one_by_one(channel(decoder), f"ours: {name}") for name, decoder in peers.items()}


def burst_table(file: Path, words: int, seed: int, device: str, seconds: float, weights: str) -> dict[str, Any]:
    """MacKay's 96.3.963 at 3 dB with bursts: with the ratios of the mixture, and with those of the quiet noise."""
    code, rows = read_code(file), {}
    sigma, truth = noise_of(3.0, code.rate), np.zeros((words, code.num_bits), np.uint8)
    for burst in range(6):
        received = {
            known: words_of(code, Bursts(sigma, float(burst), aware=known), words, seed) for known in (True, False)
        }
        decoders = {
            "sum-product, 50": ours(code, received[True], device, method="sum-product", iterations=50),
            "sum-product, 50, bursts unknown": ours(code, received[False], device, method="sum-product", iterations=50),
            "min-sum × 0.625, 50, + OSD-CS 40": ours(
                code, received[True], device, 4096, method="osd", iterations=50, scale=0.625, order=40
            ),
            "relay, 20 legs": ours(code, received[True], device, method="relay", legs=20),
        }
        if weights:
            decoders["fgnn"] = ours(code, received[True], device, method="fgnn", weights=weights)
        for name, counted in measure(decoders, truth, seconds).items():
            rows[f"σ_b = {burst}: {name}"] = counted
    return rows


def base_graph_table(file: Path, words: int, seed: int, device: str, seconds: float) -> dict[str, Any]:
    """5G NR base graph 1, lifting 384, min-sum with 20 iterations: where words converge, and where none does.

    Sionna always runs all iterations; ours stop when a word satisfies the checks. At -4 dB both do the same work.
    """
    code, rows = read_code(file, lifting=384), dict[str, Any]()
    truth = np.zeros((words, code.num_bits), np.uint8)
    sionna = _sionna(code, device)
    for decibels in (2.0, -4.0):
        llr = words_of(code, AWGN(noise_of(decibels, code.rate)), words, seed)
        options: dict[str, Any] = {"method": "min-sum", "iterations": 20, "scale": 1.0}
        at_once = 32 if device == "cpu" else 256
        decoders = {
            "ours: min-sum, 20": ours(code, llr, device, at_once, **options),
            "ours: min-sum × 0.75, 20, layered": ours(
                code, llr, device, at_once, schedule="layered", **{**options, "scale": 0.75}
            ),
        }
        if sionna is not None:
            decoders["Sionna: min-sum, 20"] = Decoder(partial(sionna, llr), at_once, "ours: min-sum, 20")
        rows |= {f"{decibels:g} dB, {name}": counted for name, counted in measure(decoders, truth, seconds).items()}
    return rows


def _sionna(code: Code, device: str) -> Callable[[Answer, int, int], Answer] | None:
    if peer("sionna") is None:
        return None
    from scipy.sparse import csr_matrix
    from sionna.phy.fec.ldpc import LDPCBPDecoder

    matrix = csr_matrix((np.ones(code.num_edges), code.bits, code.starts), (code.num_checks, code.num_bits))
    place = f"{device}:0" if device == "cuda" else device  # Sionna wants the number of a GPU
    decoder = LDPCBPDecoder(matrix, cn_update="minsum", num_iter=20, llr_max=1e4, device=place)

    @torch.no_grad()
    def answer(llr: Answer, a: int, b: int) -> Answer:
        logits = torch.from_numpy(-llr[a:b]).to(place)  # Sionna's ratios are log p(1) / p(0)
        return np.asarray(decoder(logits).cpu().numpy(), np.uint8)

    return answer
