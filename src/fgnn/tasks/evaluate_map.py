"""A trained network on fresh instances: raw and decoded, against the exact answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fgnn.errors import InputError
from fgnn.infer.local_search.decode import decode
from fgnn.models.map.learned import load_network, score
from fgnn.models.map.network import MAPNetwork
from fgnn.tasks.dataclass_io import parse
from fgnn.tasks.labelled_models import Examples
from fgnn.tasks.map import data_sets, draw_many
from fgnn.tasks.metrics import Quality
from fgnn.tasks.recipe import ChainData, Data, GridData


@dataclass(frozen=True)
class Evaluation:
    """The qualities of one network on one data set, and the milliseconds an instance took; ``both_ways`` is the raw
    answer of scores averaged over a model and its mirror image."""

    raw: Quality
    decoded: Quality
    raw_ms: float
    decoded_ms: float
    both_ways: Quality | None = None

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def evaluate_network(
    network: MAPNetwork, examples: Examples, *, samples: int = 8, both_ways: bool = False
) -> Evaluation:
    """Score, decode and compare; times are of the whole set in batches, the device's work included."""
    models = examples.models
    score(network, models.select(slice(0, min(len(models), 64))))  # first calls prepare structures and kernels
    scores, raw_seconds = _timed(lambda: score(network, models), models.device)
    answer, more = _timed(lambda: decode(models, scores, samples=samples), models.device)
    averaged = (
        Quality.of(models, score(network, models, both_ways=True).argmax(2), examples.labels) if both_ways else None
    )
    each = 1e3 / len(examples)
    return Evaluation(
        raw=Quality.of(models, scores.argmax(2), examples.labels),
        decoded=Quality.of(models, answer, examples.labels),
        raw_ms=raw_seconds * each,
        decoded_ms=(raw_seconds + more) * each,
        both_ways=averaged,
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
) -> dict[str, Evaluation]:
    """Evaluate weights or a run on its own data, or on other chains or grids, by kind; seeds never trained on."""
    network, card = load_network(place, device)
    found = {}
    for name, data in data_to_test(card, chain, grid, place).items():
        examples = draw_many(data_sets(data), instances, seed, "test", torch.device(device))
        reason = network.family.refusal(examples.models)
        if reason is not None:
            raise InputError(f"Expected data that the weights know: {reason}", file=place)
        found[name] = evaluate_network(network, examples, samples=samples, both_ways=both_ways)
    return found


def data_to_test(
    card: Mapping[str, Any], chain: ChainData | None, grid: GridData | None, place: str | Path
) -> dict[str, Data]:
    """The data sets to test on, each kind alone, by name."""
    if chain is None and grid is None:
        data = parse(Data, card["data"], file=place, place="data")
        if data.folder is not None:
            raise InputError("Expected --kind or --grid for weights trained on a folder of files", file=place)
        chain, grid = data.chain, data.grid
    if grid is not None:
        return {f"grid {grid.height} x {grid.width}": Data(grid=grid)}
    assert chain is not None
    one = [ChainData((kind,), chain.length, chain.window, chain.budget) for kind in sorted(set(chain.kinds))]
    return {f"kind {c.kinds[0]}": Data(chain=c) for c in one}


def _timed(work: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    found = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return found, time.perf_counter() - start
