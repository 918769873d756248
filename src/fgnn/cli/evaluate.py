"""`fgnn evaluate`: score a run or weights on test data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgnn.cli.complete import complete_device, complete_weights, one_of
from fgnn.errors import InputError

if TYPE_CHECKING:
    from fgnn.report import Table
    from fgnn.tasks.data_settings import ChainData
    from fgnn.tasks.evaluate_map import Evaluation


def evaluate(
    weights: Annotated[
        str,
        typer.Argument(
            help="A run's folder, a weights file, or the name of packaged weights.", autocompletion=complete_weights
        ),
    ],
    kind: Annotated[
        list[int] | None, typer.Option("--kind", "-k", help="Kinds of chain to test on; by default those trained on.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Length of the chains; by default 30.")] = None,
    window: Annotated[int | None, typer.Option(help="Window of the budgets; by default 8.")] = None,
    grid: Annotated[str | None, typer.Option(help="Grids to test on, as 8x8 or 20x20.")] = None,
    data: Annotated[
        str | None, typer.Option(help="For point networks: the folder of the test data, if not that of training.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="Shapes: one-pass or voted. Rooms: pn-sampled, all-points or voted.",
            autocompletion=one_of("one-pass", "voted", "pn-sampled", "all-points", "tiles"),
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            max=10**7,
            help="Fresh instances of each kind (1000); at most this many shapes or rooms.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the instances, which are never those of training.")] = 0,
    samples: Annotated[
        int, typer.Option(min=0, max=4096, help="Further starting points of the decoder, sampled from the network.")
    ] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...", autocompletion=complete_device)] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Score a network: on graphical models against the exact answers, on point clouds against the labels.

    Models: agreement, optimality, feasibility, score lost, time. Shapes, rooms and scans: IoU by the protocol.

    Examples: fgnn evaluate runs/paper-map-1; fgnn evaluate deep-map-joint --kind 3 --length 60;
    fgnn evaluate runs/shapes/shapes-fgnn --protocol voted
    """
    from fgnn.runtime.devices import pick_device
    from fgnn.runtime.progress import Stages
    from fgnn.tasks import GridData
    from fgnn.tasks.evaluate_map import evaluate as evaluate_weights
    from fgnn.weights.cards import read_card

    if read_card(weights).task == "points":
        if kind or length is not None or window is not None or grid:
            raise InputError("Expected --data or --protocol for a point network (got options of chains or grids)")
        _points(weights, data, protocol, count, pick_device(device), seed, as_json)
        return
    if data is not None or protocol is not None:
        raise InputError("Expected a point network for --data and --protocol (got one for graphical models)")
    count = count or 1000
    size = GridData(*_size(grid)) if grid else None
    chain = _chain(kind, length, window)
    with Stages("evaluate") as stage:
        results = evaluate_weights(
            weights, instances=count, seed=seed, device=pick_device(device), chain=chain, grid=size, samples=samples,
            log=stage,
        )  # fmt: skip
    if as_json:
        print(json.dumps({name: asdict(result) for name, result in results.items()}))
        return
    caption = f"{Path(weights).name}, {count} fresh instances each" + (" (± over batches of 32)" if count >= 64 else "")
    print(_table(results, caption).text())


def _chain(kinds: list[int] | None, length: int | None, window: int | None) -> ChainData | None:
    """The chains that options ask for; None without any of them."""
    from fgnn.tasks.data_settings import ChainData

    if not kinds and length is None and window is None:
        return None
    return ChainData(tuple(kinds or (1, 2, 3)), length=length or 30, window=window or 8)


def _table(results: dict[str, Evaluation], caption: str) -> Table:
    from fgnn.report import Table, percent

    rows = []
    for name, result in results.items():
        for how, quality, ms in (("raw", result.raw, result.raw_ms), ("decoded", result.decoded, result.decoded_ms)):
            agreement = percent(quality.agreement, quality.deviation, 2)
            shares = [percent(share, digits=2) for share in (quality.optimal, quality.feasible)]
            gap = "–" if quality.gap is None else f"{quality.gap:.4f}"
            rows.append((f"{name}, {how}", agreement, *shares, gap, f"{ms:.3f}"))
    return Table(("", "agreement %", "optimal %", "feasible %", "score lost", "ms each"), rows, caption)


def _points(
    weights: str, data: str | None, protocol: str | None, count: int | None, device: Any, seed: int, as_json: bool
) -> None:
    """Print the metrics of a point network, one column per protocol."""
    from fgnn.report import Table
    from fgnn.runtime.progress import Stages
    from fgnn.tasks.evaluate_points import evaluate_point_weights

    with Stages("evaluate") as stage:
        stage("reading the data and labelling it")
        results = evaluate_point_weights(
            weights, data=data, protocol=protocol, count=count, device=device, seed=seed, log=stage.show
        )
    if as_json:
        print(json.dumps(results))
        return
    names = list(dict.fromkeys(name for metrics in results.values() for name in metrics))
    rows = [[name, *(_format(name, metrics.get(name)) for metrics in results.values())] for name in names]
    print(Table(["percent", *results], rows, Path(weights).name).text())


def _format(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if name in ("shapes", "rooms") else f"{100 * value:.2f}"


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.strip().isdigit() for p in parts):
        raise InputError(f"Expected --grid as ROWSxCOLUMNS, such as 8x8 (got {text!r})")
    return int(parts[0]), int(parts[1])
