"""`fgnn demo`: the package's main job, small, with its result on the screen and a picture beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    count: Annotated[int, typer.Option(help="Models of each kind; the slow exact peers see fewer.")] = 200,
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Another seed, other models.")] = 0,
) -> None:
    """Make chain models like the paper's three data sets, solve them with every method, compare, and draw one.

    Example: fgnn demo --count 1000
    """
    from rich.console import Console

    from fgnn.bench.chain_table import chain_table, print_table
    from fgnn.data import ChainMAP
    from fgnn.infer import solve
    from fgnn.report.picture import draw_model

    console = Console()
    console.print(
        f"Solving {count} chain models of each of the paper's three data sets (30 binary variables, pairs, and budgets "
        "over windows of 8) with every method.\nAgreement is with the exact optimum, found by elimination.\n"
    )
    print_table(chain_table(kinds=(1, 2, 3), count=count, seed=seed), console)
    model = ChainMAP(kind=3).sample(1, seed=seed).model(0)
    best = solve(model)
    out.mkdir(parents=True, exist_ok=True)
    picture = draw_model(
        model, out / "factor_graph.png", best.assignment, f"Dataset3: score {best.score:.3f}, {best.status}"
    )
    console.print(f"\nA factor graph with its solution: [bold]{picture}[/bold]")
    console.print("Your own model: [bold]fgnn solve FILE.uai[/bold]   A page to play with: [bold]fgnn play[/bold]")
