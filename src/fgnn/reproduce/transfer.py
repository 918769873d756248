"""`fgnn reproduce transfer`: one network for all kinds, on chains it never saw: longer ones, and other windows."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from fgnn.models.map.learned import load_network
from fgnn.report.html import Page
from fgnn.report.tables import Table, percent
from fgnn.reproduce.experiment import Cell, Say, Setting
from fgnn.reproduce.output import Output, write_outputs
from fgnn.tasks.evaluate_map import evaluate_network
from fgnn.tasks.map import data_sets, draw_many
from fgnn.tasks.recipe import ChainData, Data

WEIGHTS = "deep-map-joint"
# length, window, budget: as trained first; other windows keep the share of ones that a budget allows
CHAINS = ((30, 8, 5), (60, 8, 5), (120, 8, 5), (30, 6, 4), (30, 10, 6))


def reproduce_transfer(
    setting: Setting,
    out: str | Path,
    say: Say,
    weights: str = WEIGHTS,
    chains: tuple[tuple[int, int, int], ...] = CHAINS,
) -> Output:
    """Evaluate the network on every kind and shape of chain, and write JSON, Markdown and an HTML page."""
    start = time.perf_counter()
    network, card = load_network(weights, setting.device)
    cells: list[Cell] = []
    rows = []
    for length, window, budget in chains:
        for kind in (1, 2, 3):
            data = Data(chain=ChainData((kind,), length, window, budget))
            count = max(1, setting.instances * 30 // length)
            say(f"length {length}, windows of {window}, kind {kind}: {count} instances")
            examples = draw_many(data_sets(data), count, setting.seed, "test", torch.device(setting.device))
            found = evaluate_network(network, examples)
            name = f"length {length}, windows of {window}"
            cells += [
                Cell(name, kind, found.raw, found.raw_ms),
                Cell(f"{name} + decode", kind, found.decoded, found.decoded_ms),
            ]
            raw, decoded = found.raw, found.decoded
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
    heading = [
        "chains",
        "agreement %, raw",
        "wholly optimal %",
        "agreement %, decoded",
        "wholly optimal %",
        "feasible %",
    ]
    trained = card["data"]["chain"]
    table = Table(heading, rows, f"Trained on length {trained['length']}, windows of {trained['window']} alone")
    page = Page("One network for all kinds of chain, on lengths and windows it never saw")
    page.table(table)
    result = Output("transfer", setting, cells, [table], page, time.perf_counter() - start)
    write_outputs(result, out)
    return result
