"""What a guide gains: the search with and without it at equal CPU time, the network's included.

`python -m tools.guide_gain` writes ``benchmarks/results/guide.json`` and prints the table. One thread searches, and CPU
time is counted, so that a busy machine does not decide.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer

from fgnn.bench.anytime import families
from fgnn.bench.common import RESULTS, describe, number, show
from fgnn.files import atomic_write
from fgnn.infer.certificate import StandardForm
from fgnn.infer.search.arrays import arrays_of
from fgnn.infer.search.guide import beliefs
from fgnn.infer.search.pool import Penalised, Pool
from fgnn.infer.search.solver import DEFAULT_MOVES
from fgnn.infer.search.worker import Worker
from fgnn.models import MAPNetwork
from fgnn.models.map.learned import choose_weights, load_network, score
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.runtime.environment import environment

PROTOCOL = (
    "One thread on a CPU; seconds of CPU time, from the model in standard form on; the guide's network is counted in. "
    "Scores are those of the best assignment at the time; the gain is guided minus plain, averaged over the instances."
)
# The families: how they relate to what the guide was trained on, and instances by seed.
FAMILIES: dict[str, tuple[str, Callable[[int], GraphicalModel]]] = {
    "glass 50 x 50": ("trained on, at 8 x 8 and 10 x 10", partial(families.glass, 50)),
    "glass 100 x 100": ("trained on, at 8 x 8 and 10 x 10", partial(families.glass, 100)),
    "graph of degree 3, 1,000": ("trained on, at 48 nodes", partial(families.graph_glass, 1000, 3)),
    "graph of degree 4, 500": ("trained on, at 40 nodes", partial(families.graph_glass, 500, 4)),
    "budgets 50 x 50": ("trained on, at 8 x 8", partial(families.with_budgets, 50)),
    "graph of degree 8, 500": ("never trained on", partial(families.graph_glass, 500, 8)),
    "ferromagnet 60 x 60": ("never trained on", partial(families.ferromagnet, 60)),
}


@lru_cache
def network(weights: str) -> MAPNetwork:
    """A packaged network, loaded once."""
    return load_network(weights)[0]


def search(model: GraphicalModel, weights: str | None, marks: list[float], seed: int) -> list[float]:
    """The best standard score at each mark, in seconds of CPU time."""
    batch = ModelBatch.stack([model])
    standard = StandardForm.of(batch).batch
    began = time.thread_time()
    penalised = Penalised.of(*arrays_of(standard, 0))
    belief = None
    if weights is not None:
        belief = beliefs(score(network(weights), batch)[0], penalised.arrays.cards)
    pool = Pool()
    worker = Worker(penalised, pool, (seed, 0, 0), DEFAULT_MOVES, belief)
    pool.offer(worker.start, penalised.rank(worker.start))
    found: list[float] = []
    slices = 0
    while len(found) < len(marks):
        spent = time.thread_time() - began
        if spent >= marks[len(found)] or pool.solved:
            far, best = pool.best().rank
            found.append(float(best) if far == 0 else -float("inf"))
            continue
        worker.slice(64.0 if not slices else (marks[-1] - spent) * slices / spent)
        slices += 1
    return found


def gain(make: Callable[[int], GraphicalModel], seeds: int, marks: list[float]) -> dict[str, Any]:
    """Plain and guided scores of the instances of a family."""
    rows: dict[str, Any] = {"plain": [], "guided": []}
    for seed in range(seeds):
        model = make(seed)
        rows["weights"] = choose_weights(ModelBatch.stack([model]))
        rows["plain"].append(search(model, None, marks, seed))
        rows["guided"].append(search(model, rows["weights"], marks, seed))
    pairs = [list(zip(*columns, strict=True)) for columns in zip(rows["plain"], rows["guided"], strict=True)]
    rows["gain"] = [fmean(p[k][1] - p[k][0] for p in pairs) for k in range(len(marks))]
    rows["better"] = [sum(p[k][1] > p[k][0] + 1e-9 for p in pairs) for k in range(len(marks))]
    rows["worse"] = [sum(p[k][1] < p[k][0] - 1e-9 for p in pairs) for k in range(len(marks))]
    return rows


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Instances of each family.")] = 4,
    at: Annotated[list[float] | None, typer.Option(help="Seconds of CPU time; 1 and 3 by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file; benchmarks/results/guide.json by default.")] = None,
) -> None:
    """Measure what a guide gains."""
    torch.set_num_threads(1)
    marks = sorted(at or [1.0, 3.0])
    for weights in (None, "guide-pairs", "deep-grid"):  # load compiled loops and networks
        search(families.with_budgets(8, 0) if weights == "deep-grid" else families.glass(12, 0), weights, [0.2], 0)
    result: dict[str, Any] = {
        "benchmark": "guide", "environment": environment("cpu"), "protocol": PROTOCOL, "at": marks, "seeds": seeds,
        "families": {},
    }  # fmt: skip
    for name, (relation, make) in FAMILIES.items():
        result["families"][name] = {"relation": relation, **gain(make, seeds, marks)}
        with atomic_write(out or RESULTS / "guide.json") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    print(describe(result["environment"]))
    rows = []
    for name, f in result["families"].items():
        cells = zip(f["gain"], f["better"], f["worse"], strict=True)
        rows.append([name, f["relation"], *(f"{number(mean)} ({up} / {down})" for mean, up, down in cells)])
    show("Gain of the guide (better / worse)", ("", "", *(f"{m:g} s" for m in marks)), rows)


if __name__ == "__main__":
    typer.run(main)
