"""`fgnn demo`: the paper's first table on fresh models, and a picture of one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fgnn.names import printable

if TYPE_CHECKING:
    from fgnn.reproduce.experiment import Output

_QUICK = 100  # models of a quick demo


def demo(
    count: Annotated[int, typer.Option(min=1, help="Models of each kind; slow methods get fewer.")] = 1000,
    quick: Annotated[
        bool, typer.Option("--quick", help="A hundred models of one kind, without the slow methods: seconds.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the page.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of the models.")] = 0,
) -> None:
    """Generate chain models like the paper's three data sets, solve them with every method, and draw one.

    Like 'fgnn reproduce table1 --quick', with a picture of a model and its solution.

    Example: fgnn demo --quick
    """
    from fgnn.data import ChainMAP
    from fgnn.drawing import draw
    from fgnn.files import check_folder
    from fgnn.infer import solve

    check_folder(out)
    model = ChainMAP(kind=3).sample(1, seed=seed).model(0)
    best = solve(model)
    title = f"Dataset3: score {best.score:.3f}, {best.status}"
    picture = draw(model, best, title=title).save(out / "factor_graph.svg")
    kinds = "the paper's third data set" if quick else "each of the paper's three data sets"
    count = min(count, _QUICK) if quick else count
    print(
        f"Solving {count:,} new chain models of {kinds} (30 binary variables, pairs, budgets over windows of 8). "
        "Elimination gives the exact optimum.\n",
        flush=True,
    )
    result = _table(count, quick, out, seed)
    for table in result.tables:
        print(table.text() + "\n")
    if any(getattr(cell, "origin", "") == "recorded" for cell in result.cells):
        print("* recorded when it was trained; the weights are not packaged\n")
    print(printable(f"{result.seconds:.0f} s. With plots: {out / 'table1.html'}"))
    print(printable(f"A factor graph with its solution: {picture}"))
    print("To go on: . .venv/bin/activate (if fgnn is not on your path), then fgnn sample model, or fgnn play")


def _table(count: int, quick: bool, out: Path, seed: int) -> Output:
    from fgnn.reproduce.experiment import Setting
    from fgnn.reproduce.table1 import KINDS, reproduce_table1
    from fgnn.runtime.devices import pick_device
    from fgnn.runtime.progress import Stages

    setting = Setting(instances=count, quick=True, seed=seed, device=str(pick_device("auto")))
    # AD3's loops are compiled at their first call, which takes longer than all else
    skip = ("AD3",) if quick else ()
    with Stages("demo") as stage:
        return reproduce_table1(setting, out, stage, kinds=(3,) if quick else KINDS, skip=skip)
