"""`fgnn reproduce`: the paper's tables, with our results beside the paper's."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fgnn.cli.complete import complete_device, complete_weights, one_of
from fgnn.errors import InputError, printable

if TYPE_CHECKING:
    from fgnn.runtime.progress import Log, Stages

# Experiment NAME is fgnn.reproduce.NAME.reproduce_NAME: (setting, out, log) -> Output with .tables and .seconds.
EXPERIMENTS = ("table1", "ablation", "transfer", "depth", "table2", "table3", "grids", "ground")


def reproduce(
    experiment: Annotated[
        str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}.", autocompletion=one_of(*EXPERIMENTS))
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Packaged weights and 1,000 instances: minutes, not hours.")
    ] = False,
    window: Annotated[int, typer.Option(help="8, as in the paper, or 9, as in its authors' code.")] = 8,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="Fresh instances of each kind; for table3 shapes."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder of S3DIS (table2), ShapeNet-Part (table3) or the ISPRS samples (ground)."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="A run or weights to score for table3 or ground, instead of the packaged ones.",
            autocompletion=complete_weights,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the JSON, Markdown and HTML.")] = Path("out"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...", autocompletion=complete_device)] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Compile the networks to train.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the test instances.")] = 0,
) -> None:
    """Reproduce a table of the paper and write it as JSON, Markdown and an HTML page.

    Without --quick the networks are trained first, by the paper's protocol; interrupted runs continue.

    table2 and table3 read their data sets from --data; table3 scores the packaged weights and the runs in runs/shapes.

    Example: fgnn reproduce table1 --quick
    """
    from fgnn.files import check_folder
    from fgnn.reproduce.experiment import Setting
    from fgnn.runtime.devices import pick_device
    from fgnn.runtime.progress import Stages

    if experiment not in EXPERIMENTS:
        raise InputError(f"Expected an experiment among {', '.join(EXPERIMENTS)} (got {experiment!r})")
    if window not in (8, 9):
        raise InputError(f"Expected a window of 8 or 9 (got {window})")
    setting = Setting(
        window=window,
        instances=count or (1000 if quick else 10_000),
        quick=quick,
        seed=seed,
        device=str(pick_device(device)),
        compile=compile,
        data=None if data is None else str(data),
        run=run,
    )
    check_folder(out)
    module = import_module(f"fgnn.reproduce.{experiment}")
    with Stages(experiment) as stage:
        stage("starting")
        result = getattr(module, f"reproduce_{experiment}")(setting, out, _logged(stage))
    for table in result.tables:
        print(table.text() + "\n")
    print(printable(f"{result.seconds:.0f} s; written to {out / experiment}.html, .json and .md"))
    print(printable(f"next: python -m webbrowser {shlex.quote(str(out / experiment))}.html"))


def _logged(stage: Stages) -> Log:
    """Keep each line, and show it while what it announces goes on."""

    def log(text: str) -> None:
        stage.log(text)
        stage.show(text)

    return log
