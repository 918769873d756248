"""Evaluate a network on fresh instances, raw and decoded, against the exact answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fgnn.errors import InputError
from fgnn.infer.local_search.decode import decode
from fgnn.models import MAPNetwork, load_network
from fgnn.models.map.learned import score
from fgnn.runtime.devices import synchronised_time
from fgnn.runtime.progress import Log
from fgnn.tasks.data_settings import ChainData, Data, GridData
from fgnn.tasks.labelled_models import Examples
from fgnn.tasks.map import data_sets, draw_many
from fgnn.tasks.metrics import Quality
from fgnn.tasks.recipe import TrainedOn
from fgnn.weights import Card


@dataclass(frozen=True)
class Evaluation:
    """Quality and milliseconds per instance of a network on one data set.

    ``both_ways`` is the raw answer of scores averaged over a model and its reversal.
    """

    raw: Quality
    decoded: Quality
    raw_ms: float
    decoded_ms: float
    both_ways: Quality | None = None


def evaluate_network(
    network: MAPNetwork, examples: Examples, *, samples: int = 8, both_ways: bool = False
) -> Evaluation:
    """Score, decode and compare with the exact answers; times include the work of the device."""
    models = examples.models
    score(network, models.select(slice(0, 64)))  # warm up: the first call prepares structures and kernels
    start = synchronised_time(models.device)
    scores = score(network, models)
    scored = synchronised_time(models.device)
    answer = decode(models, scores, samples=samples)
    decoded = synchronised_time(models.device)
    averaged = score(network, models, both_ways=True) if both_ways else None
    return Evaluation(
        raw=Quality.of(models, scores.argmax(2), examples.labels),
        decoded=Quality.of(models, answer, examples.labels),
        raw_ms=1e3 * (scored - start) / len(examples),
        decoded_ms=1e3 * (decoded - start) / len(examples),
        both_ways=None if averaged is None else Quality.of(models, averaged.argmax(2), examples.labels),
    )


def evaluate(
    place: str | Path,
    *,
    instances: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    chain: ChainData | None = None,
    grid: GridData | None = None,
    samples: int = 8,
    both_ways: bool = False,
    log: Log = lambda text: None,
) -> dict[str, Evaluation]:
    """Evaluate weights or a run by kind of data: its own, or other chains or grids; never on seeds it trained on."""
    network, card = load_network(place, device)
    evaluations = {}
    for name, data in data_to_test(card, chain, grid, place).items():
        log(f"{name}: solving {instances:,} fresh instances exactly")
        examples = draw_many(data_sets(data), instances, seed, "test", torch.device(device))
        reason = network.family.refusal(examples.models)
        if reason is not None:
            raise InputError(f"Expected data that the weights know: {reason}", file=place)
        log(f"{name}: the network, then local search")
        evaluations[name] = evaluate_network(network, examples, samples=samples, both_ways=both_ways)
    return evaluations


def data_to_test(card: Card, chain: ChainData | None, grid: GridData | None, place: str | Path) -> dict[str, Data]:
    """Return the data sets to test on by name, one per kind."""
    if chain is None and grid is None:
        data = card.part(TrainedOn).data
        if data.folder is not None:
            raise InputError("Expected --kind or --grid for weights trained on a folder of files", file=place)
        chain, grid = data.chain, data.grid
    if grid is not None:
        return {f"grid {grid.height} x {grid.width}": Data(grid=grid)}
    assert chain is not None
    return {f"kind {kind}": Data(chain=replace(chain, kinds=(kind,))) for kind in sorted(set(chain.kinds))}
