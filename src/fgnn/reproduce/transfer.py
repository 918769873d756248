"""`fgnn reproduce transfer`: one network for all kinds, on lengths and windows it was not trained on."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from fgnn.models import load_network
from fgnn.report import Page, Table, percent
from fgnn.reproduce.experiment import Cell, Output, Setting, evaluation_cells, write_outputs
from fgnn.runtime.progress import Log
from fgnn.tasks import Data
from fgnn.tasks.data_settings import ChainData
from fgnn.tasks.evaluate_map import evaluate_network
from fgnn.tasks.map import data_sets, draw_many
from fgnn.tasks.recipe import TrainedOn

WEIGHTS = "deep-map-joint"
# length, window, budget: first as trained; other windows keep the budget's share of ones
CHAINS = ((30, 8, 5), (60, 8, 5), (120, 8, 5), (30, 6, 4), (30, 10, 6))


def reproduce_transfer(
    setting: Setting,
    out: str | Path,
    log: Log,
    weights: str = WEIGHTS,
    chains: tuple[tuple[int, int, int], ...] = CHAINS,
) -> Output:
    """Evaluate the network on every kind and size of chain."""
    start = time.perf_counter()
    network, card = load_network(weights, setting.device)
    cells: list[Cell] = []
    rows = []
    for length, window, budget in chains:
        for kind in (1, 2, 3):
            data = Data(chain=ChainData((kind,), length, window, budget))
            count = max(1, setting.instances * 30 // length)
            log(f"length {length}, windows of {window}, kind {kind}: {count} instances")
            examples = draw_many(data_sets(data), count, setting.seed, "test", torch.device(setting.device))
            name = f"length {length}, windows of {window}"
            raw_cell, decoded_cell = evaluation_cells(name, kind, evaluate_network(network, examples))
            cells += [raw_cell, decoded_cell]
            raw, decoded = raw_cell.quality, decoded_cell.quality
            rows.append(
                [
                    f"{name}, kind {kind}",
                    percent(raw.agreement, raw.deviation),
                    percent(raw.optimal),
                    percent(decoded.agreement),
                    percent(decoded.optimal),
                    percent(decoded.feasible),
                ]
            )
    heading = ["chains", "agreement %, raw", "optimal %", "agreement %, decoded", "optimal %", "feasible %"]
    trained = card.part(TrainedOn).data.chain or ChainData()
    table = Table(heading, rows, f"Trained on length {trained.length}, windows of {trained.window} only")
    page = Page("One network for all kinds of chain, on new lengths and windows")
    page.table(table)
    return write_outputs(Output("transfer", setting, cells, [table], page, time.perf_counter() - start), out)
