"""Speed of marginals and log Z beside pgmpy, pyAgrum, torch-struct and a NumPy loop, on the same numbers in one run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.bench.common import describe, number, show, timed, write_result
from fgnn.bench.evidence import evidence_ratios
from fgnn.bench.numpy_messages import numpy_sum_product
from fgnn.infer import log_partition, marginals
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.runtime.environment import environment
from fgnn.runtime.progress import Stages

# Models that the loop sees, one by one.
_LOOP_MODELS = 100
# Sizes of chains: models, length, states.
CHAINS = {"cpu": ((32, 64, 16), (32, 256, 8)), "cuda": ((256, 128, 32), (64, 512, 32), (1024, 64, 16))}
# Expected lower bounds of the ratios.
BARS = {"evidence": 1000.0, "chains, cpu": 2.0, "chains, cuda": 5.0, "sum-product": 10.0}


def run(
    network: Path | None = None,
    device: str = "cpu",
    evidences: int = 10_000,
    seed: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Time ours and the peers that are installed, print the ratios and write them as JSON.

    Args:
        network: A Bayesian network, for the comparison with pgmpy and pyAgrum; None skips it.
        device: Of ours and of torch-struct.
        evidences: Queries in one call.
        seed: Of the inputs.
        out: Where to write the JSON; see `write_result`.
        quiet: Whether to print nothing.
    """
    kind = torch.device(device).type
    result: dict[str, Any] = {"benchmark": "marginals-speed", "environment": environment(device), "seed": seed}
    ratios: dict[str, Any] = {}
    with Stages("bench marginals", quiet=quiet) as stage:
        if network is not None:
            stage("queries beside pgmpy")
            ratios |= evidence_ratios(network, device, evidences, seed, {"pgmpy": BARS["evidence"]})
        for models, length, states in CHAINS[kind]:
            stage(f"{models:,} chains of {length:,}")
            ratios |= _chains(models, length, states, device, seed)
        stage("sum-product")
        ratios |= _sum_product(device, seed)
    result["ratios"] = ratios
    if not quiet:
        _print(result)
    return result | {"file": str(write_result(f"marginals-speed-{kind}", result, out))}


def _row(ours: float, peer: float, expected: float, difference: float) -> dict[str, Any]:
    return {
        "ours_ms": 1000 * ours,
        "peer_ms": 1000 * peer,
        "ratio": peer / ours,
        "expected": expected,
        "largest_difference": difference,
    }


# ---- chains --------------------------------------------------------------------------------------------------------


def chain_batch(models: int, length: int, states: int, device: str, seed: int) -> ModelBatch:
    """Random chains with tables of their own, in float32."""
    make = torch.Generator().manual_seed(seed)
    template = GraphicalModel([states] * length)
    template.add_tables([(i, i + 1) for i in range(length - 1)], np.zeros((length - 1, states, states)))
    batch = ModelBatch.stack([template], dtype=torch.float32).repeat(models)
    values = torch.randn(models, length - 1, states, states, generator=make)
    tables = (replace(batch.tables[0], values=values, shared=frozenset()),)
    return replace(batch, tables=tables, unary=torch.zeros(models, length, states)).to(device)


def _chains(models: int, length: int, states: int, device: str, seed: int) -> dict[str, Any]:
    """log Z of chains and its gradient by all tables."""
    name = f"log Z with gradients, {models} chains of {length} × {states} states : torch-struct"
    batch = chain_batch(models, length, states, device, seed)
    edges = batch.tables[0].values

    def ours() -> tuple[Tensor, Tensor]:
        values = edges.detach().requires_grad_(True)
        log_z = log_partition(replace(batch, tables=(replace(batch.tables[0], values=values),)), "exact").value
        (gradient,) = torch.autograd.grad(log_z.sum(), values)
        return log_z.detach(), gradient

    try:
        from torch_struct import LinearChainCRF
    except ImportError as error:
        return {name: {"skipped": str(error)}}

    def peer() -> tuple[Tensor, Tensor]:
        values = edges.transpose(2, 3).detach().requires_grad_(True)  # its tables are (next, current)
        with warnings.catch_warnings(action="ignore"):  # it states no constraints on its arguments
            log_z = LinearChainCRF(values).partition
        (gradient,) = torch.autograd.grad(log_z.sum(), values)
        return log_z.detach(), gradient.transpose(2, 3)

    repeats = 10 if torch.device(device).type == "cuda" else 3
    mine = timed(ours, repeats=repeats, warmup=2, device=device)
    theirs = timed(peer, repeats=repeats, warmup=2, device=device)
    difference = float((mine.result[1] - theirs.result[1]).abs().max())
    kind = torch.device(device).type
    return {name: _row(mine.median, theirs.median, BARS[f"chains, {kind}"], difference)}


# ---- sum-product ---------------------------------------------------------------------------------------------------


def grid_models(count: int, side: int, seed: int) -> ModelBatch:
    """Random binary grids of one structure."""
    make = torch.Generator().manual_seed(seed)
    number = np.arange(side * side).reshape(side, side)
    across, down = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:])
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in (across, down)])
    template = GraphicalModel([2] * side**2)
    template.add_tables([tuple(p) for p in pairs.tolist()], np.zeros((len(pairs), 2, 2)))
    batch = ModelBatch.stack([template]).repeat(count)
    values = 0.5 * torch.randn(count, len(pairs), 2, 2, generator=make, dtype=torch.float64)
    unary = torch.randn(count, side * side, 2, generator=make, dtype=torch.float64)
    return replace(batch, unary=unary, tables=(replace(batch.tables[0], values=values, shared=frozenset()),))


def _sum_product(device: str, seed: int) -> dict[str, Any]:
    """Loopy belief propagation on grids: ours in one batch, a NumPy loop model by model."""
    count = 10_000 if torch.device(device).type == "cuda" else 2_000
    host = grid_models(count, 8, seed)
    batch = host.to(device)
    options: dict[str, Any] = {"iterations": 200, "damping": 0.5, "tolerance": 1e-5}
    mine = timed(lambda: marginals(batch, "sum-product", **options), repeats=2, device=device)
    difference, start = 0.0, time.perf_counter()
    answers = [numpy_sum_product(host.model(b), **options) for b in range(_LOOP_MODELS)]
    seconds = time.perf_counter() - start
    for b, p in enumerate(answers):
        ours = np.stack([v[b].cpu().numpy() for v in mine.result.variables])
        difference = max(difference, float(np.abs(ours - p).max()))
    row = _row(mine.median / count, seconds / _LOOP_MODELS, BARS["sum-product"], difference)
    return {f"sum-product on {count:,} grids of 8 × 8, per model : NumPy loop": row}


def _print(result: Mapping[str, Any]) -> None:
    print(describe(result["environment"]))
    rows = []
    for name, r in result["ratios"].items():
        if "skipped" in r:
            print(f"skipped: {name}: {r['skipped']}")
            continue
        reached = None if r["expected"] is None else "yes" if r["ratio"] >= r["expected"] else "no"
        times = (number(r["ours_ms"]), number(r["peer_ms"]), number(r["ratio"]))
        if "peer_queries" in r:
            print(f"{name}: mean over the first {r['peer_queries']} of {r['evidences']:,} evidences, one by one")
        rows.append((name, *times, r["expected"], reached, f"{r['largest_difference']:.1e}"))
    columns = ("ours : peer", "ours, ms", "peer, ms", "ratio", "expected", "reached", "largest difference")
    show("Times and ratios", columns, rows)
