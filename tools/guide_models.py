"""Write the models that the packaged guide is trained on: `python -m tools.guide_models FOLDER`.

Spin glasses and ferromagnets with fields of every strength, on grids and on random graphs of degree three to five, all
small enough for exact labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from fgnn.bench.anytime.families import grid_pairs, ising, random_graph
from fgnn.pgm import GraphicalModel
from fgnn.pgm.io import write_model

_SIDES = (8, 10)
_GRAPHS = ((48, 3), (40, 4), (32, 5))  # nodes and degree
_TIMES = 6  # graphs of each kind


def structures(rng: np.random.Generator) -> list[tuple[int, NDArray[np.int64]]]:
    """The numbers of variables and the pairs of all structures."""
    grids = [(side**2, grid_pairs(side)) for side in _SIDES]
    return grids + [(n, random_graph(n, degree, rng)) for n, degree in _GRAPHS for _ in range(_TIMES)]


def draw(count: int, pairs: NDArray[np.int64], rng: np.random.Generator) -> GraphicalModel:
    """Fields and couplings of random scales, the couplings around a random mean."""
    field = rng.uniform(0.1, 1.5) * rng.normal(size=count)
    coupling = rng.uniform(0.3, 1.5) * (rng.normal(size=len(pairs)) + rng.choice([0.0, 0.0, 0.5, 1.0]))
    return ising(pairs, field, coupling)


def main(
    folder: Annotated[Path, typer.Argument(help="Where to write the files.")],
    grids: Annotated[int, typer.Option(min=1, help="Models on each grid.")] = 600,
    graphs: Annotated[int, typer.Option(min=1, help="Models on each graph.")] = 80,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 0,
) -> None:
    """Write the training models of the guide."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for which, (count, pairs) in enumerate(structures(rng)):
        for k in range(grids if which < len(_SIDES) else graphs):
            write_model(draw(count, pairs, rng), folder / f"{which:02}-{k:04}.fgm")


if __name__ == "__main__":
    typer.run(main)
