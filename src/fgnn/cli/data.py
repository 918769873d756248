"""`fgnn data`: generate labelled models, and check published data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fgnn.names import printable

data = typer.Typer(help="Generate labelled models, and check data sets that you have.", no_args_is_help=True)

_Out = Annotated[Path, typer.Option("--out", help="The folder to write to.")]
_Count = Annotated[int, typer.Option("--count", "-n", min=1, max=10**7, help="How many models.")]
_Seed = Annotated[int, typer.Option("--seed", help="Seed of the set.")]


@data.command()
def chain(
    out: _Out,
    count: _Count = 10_000,
    kind: Annotated[int, typer.Option("--kind", "-k", help="1, 2 or 3: the paper's Dataset1 to Dataset3.")] = 1,
    length: Annotated[int, typer.Option(help="Variables in a chain.")] = 30,
    window: Annotated[int, typer.Option(help="Variables under one budget.")] = 8,
    budget: Annotated[int, typer.Option(help="The most ones in a window, for kinds 1 and 2.")] = 5,
    seed: _Seed = 0,
) -> None:
    """Chains with budgets over windows, section 4.1.

    Example: fgnn data chain --kind 1 --count 10000 --out chains
    """
    from fgnn.data import ChainMAP

    _write(ChainMAP(kind=kind, length=length, window=window, budget=budget), out, count, seed)


@data.command()
def grid(
    out: _Out,
    count: _Count = 1000,
    height: Annotated[int, typer.Option(help="Rows.")] = 8,
    width: Annotated[int, typer.Option(help="Columns.")] = 8,
    patch: Annotated[tuple[int, int], typer.Option(help="Rows and columns of a patch under one budget.")] = (2, 3),
    seed: _Seed = 0,
) -> None:
    """Loopy grids with budgets over patches.

    Example: fgnn data grid --height 8 --width 8 --count 1000 --out grids
    """
    from fgnn.data import GridMAP

    _write(GridMAP(height=height, width=width, patch=patch), out, count, seed)


@data.command()
def check(
    folder: Annotated[Path, typer.Argument(help="The folder of the data set.")],
) -> None:
    """Compare files of S3DIS or ShapeNet-Part with the published md5 sums; exit 1 if one differs or is missing.

    Example: fgnn data check indoor3d_sem_seg_hdf5_data
    """
    from fgnn.data.release import check_release

    files = check_release(folder)
    for file in files:
        print(f"{file.status:<14} {printable(file.name)}")
    wrong = sum(file.status != "as published" for file in files)
    releases = ", ".join(dict.fromkeys(file.release for file in files))
    print(f"{len(files) - wrong} of {len(files)} files as published: {releases}")
    if wrong:
        raise typer.Exit(1)


def _write(family: Any, out: Path, count: int, seed: int) -> None:
    from fgnn.files import check_folder
    from fgnn.runtime.progress import Stages

    check_folder(out)
    with Stages("data") as stage:
        stage(f"solving {count:,} models exactly")
        stored = family.save(out, count, seed=seed)
    print(printable(f"{out}: {len(stored.batch)} models with exact labels, {family}, seed {seed}"))
