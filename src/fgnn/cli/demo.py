"""`fgnn demo`: the paper's first table on fresh models, and a picture of one model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fgnn.names import printable


def demo(
    count: Annotated[int, typer.Option(min=1, help="Models of each kind; slow methods get fewer.")] = 1000,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the page.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of the models.")] = 0,
) -> None:
    """Generate chain models like the paper's three data sets, solve them with every method, and draw one.

    Like 'fgnn reproduce table1 --quick', with a picture of a model and its solution.

    Example: fgnn demo --count 200
    """
    from rich.console import Console

    from fgnn.data import ChainMAP
    from fgnn.drawing import draw
    from fgnn.files import check_folder
    from fgnn.infer import solve
    from fgnn.reproduce.experiment import Setting
    from fgnn.reproduce.table1 import reproduce_table1
    from fgnn.runtime.devices import pick_device

    check_folder(out)
    model = ChainMAP(kind=3).sample(1, seed=seed).model(0)
    best = solve(model)
    title = f"Dataset3: score {best.score:.3f}, {best.status}"
    picture = draw(model, best, title=title).save(out / "factor_graph.svg")

    console = Console(highlight=False)
    console.print(
        f"Solving {count:,} fresh chain models of each of the paper's three data sets (30 binary variables, pairs, and "
        "budgets over windows of 8) with every method, and exactly by elimination.\n"
    )
    setting = Setting(instances=count, quick=True, seed=seed, device=str(pick_device("auto")))
    with console.status("starting") as status:
        result = reproduce_table1(setting, out, status.update if sys.stdout.isatty() else lambda text: None)
    for table in result.tables:
        print(table.text() + "\n")
    if any(getattr(cell, "origin", "") == "recorded" for cell in result.cells):
        print("* recorded when it was trained; the weights are not packaged\n")
    print(printable(f"{result.seconds:.0f} s. With plots: {out / 'table1.html'}"))
    print(printable(f"A factor graph with its solution: {picture}"))
    print("To go on: . .venv/bin/activate (if fgnn is not on your path), then fgnn sample model, or fgnn play")
