"""`fgnn reproduce ablation`: the number of variables under a factor of the network, on Dataset1."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from fgnn.report import Page, Table, lines, percent
from fgnn.reproduce.experiment import Cell, Output, Setting, fresh_set, network_cells, paper_recipe, write_outputs
from fgnn.reproduce.paper import ABLATION
from fgnn.runtime.progress import Log
from fgnn.tasks import Recipe, read_recipe

SIZES = (4, 6, 8)


def reproduce_ablation(setting: Setting, out: str | Path, log: Log) -> Output:
    """Compare networks whose high-order factors cover 4, 6 or all 8 variables of a window of the data."""
    start = time.perf_counter()
    examples = fresh_set(setting, 1)
    cells: list[Cell] = []
    for size in SIZES:
        full = size == setting.window or size == SIZES[-1]
        name = _name(size, full, setting.window)

        def recipe(size: int = size, full: bool = full) -> Recipe:
            network = read_recipe("paper-map-1").network
            return paper_recipe(1, setting.window, network if full else replace(network, factor_size=size))

        measured = network_cells(setting, name, f"factors of {size}", 1, examples, recipe, log)
        cells += [c for c in measured if not c.method.endswith("decode")]
    table = ablation_table(cells)
    page = Page("The size of the network's high-order factors, on Dataset1")
    page.text(
        f"The data has budgets over windows of {setting.window}; the high-order factors of the network cover 4, 6 or "
        "all variables of a window. The true size is best."
    )
    page.table(table)
    series = {"ours": [(float(_size(c)), 100 * c.quality.agreement) for c in cells]}
    series["the paper"] = [(float(size), value) for size, value in ABLATION.items()]
    picture = lines({k: v for k, v in series.items() if v}, "variables of a factor", "agreement with the exact MAP, %")
    page.picture(picture, "Agreement by the number of variables under a factor")
    return write_outputs(Output("ablation", setting, cells, [table], page, time.perf_counter() - start), out)


def ablation_table(cells: list[Cell]) -> Table:
    """Agreement by factor size, ours and the paper's."""
    rows = []
    for cell in cells:
        q, size = cell.quality, _size(cell)
        star = "*" if cell.origin == "recorded" else ""
        rows.append([f"{size} variables{star}", percent(q.agreement, q.deviation), f"{ABLATION[size]:.1f}"])
    return Table(["factors of the network", "agreement %", "paper"], rows, "Dataset1")


def _name(size: int, full: bool, window: int) -> str:
    suffix = "" if window == 8 else f"-w{window}"
    return f"paper-map-1{suffix}" if full else f"ablation-{size}{suffix}"


def _size(cell: Cell) -> int:
    return int(cell.method.rsplit(" ", 1)[1])
