"""`fgnn evaluate`: a run or weights on fresh instances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fgnn.errors import InputError


def evaluate(
    weights: Annotated[str, typer.Argument(help="A run's folder, a weights file, or the name of packaged weights.")],
    kind: Annotated[
        list[int] | None, typer.Option("--kind", "-k", help="Kinds of chain to test on; by default those trained on.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Another length of chain than 30.")] = None,
    window: Annotated[int | None, typer.Option(help="Another window than 8.")] = None,
    grid: Annotated[str | None, typer.Option(help="Grids to test on, as 8x8 or 20x20.")] = None,
    data: Annotated[
        str | None, typer.Option(help="For point networks: where the test data lies, if not where it was in training.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Shapes: one-pass or voted. Rooms: pn-sampled, all-points or voted."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, help="Fresh instances of each kind (1000); at most so many shapes or rooms."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seeds the instances; never one that was trained on.")] = 0,
    samples: Annotated[int, typer.Option(help="Further starting points for decoding, drawn from the network.")] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Score a network: on graphical models against the exact answers, on point clouds against the labels.

    Models: agreement, whole instances, feasibility, loss in score, time. Shapes, rooms and scans: IoU by the protocol.

    Examples: fgnn evaluate runs/paper-map-1; fgnn evaluate deep-map-joint --kind 3 --length 60;
    fgnn evaluate runs/shapes/shapes-fgnn --protocol voted
    """
    from fgnn.report.tables import Table, percent
    from fgnn.runtime.devices import pick_device
    from fgnn.tasks.evaluate_map import evaluate as evaluate_weights
    from fgnn.tasks.recipe import ChainData, GridData
    from fgnn.weights.cards import read_card

    if read_card(weights).get("task") == "points":
        if kind or length is not None or window is not None or grid:
            raise InputError("Expected --data or --protocol for a point network (got options of chains or grids)")
        _points(weights, data, protocol, count, pick_device(device), seed, as_json)
        return
    if data is not None or protocol is not None:
        raise InputError("Expected a point network for --data and --protocol (got one for graphical models)")
    count = count or 1000
    chain = None
    if kind or length is not None or window is not None:
        kinds = tuple(kind) if kind else (1, 2, 3)
        chain = ChainData(kinds, length=length or 30, window=window or 8)
    found = evaluate_weights(
        weights,
        instances=count,
        seed=seed,
        device=pick_device(device),
        chain=chain,
        grid=GridData(*_size(grid)) if grid else None,
        samples=samples,
    )
    if as_json:
        print(json.dumps({name: result.plain() for name, result in found.items()}))
        return
    rows = []
    for name, result in found.items():
        for how, quality, ms in (
            ("raw", result.raw, result.raw_ms),
            ("decoded", result.decoded, result.decoded_ms),
        ):
            rows.append(
                (
                    f"{name}, {how}",
                    percent(quality.agreement, quality.deviation, 2),
                    percent(quality.optimal, digits=2),
                    percent(quality.feasible, digits=2),
                    "–" if quality.gap is None else f"{quality.gap:.4f}",
                    f"{ms:.3f}",
                )
            )
    heading = ("", "agreement %", "optimal %", "feasible %", "score lost", "ms each")
    caption = f"{Path(weights).name}, {count} fresh instances each" + (" (± over batches of 32)" if count >= 64 else "")
    print(Table(heading, rows, caption).text())


def _points(
    weights: str, data: str | None, protocol: str | None, count: int | None, device: Any, seed: int, as_json: bool
) -> None:
    """Print the metrics of a point network, one protocol a column."""
    from fgnn.report.tables import Table
    from fgnn.runtime.progress import log_line
    from fgnn.tasks.evaluate_points import evaluate_point_weights

    found = evaluate_point_weights(
        weights, data=data, protocol=protocol, count=count, device=device, seed=seed, log=log_line
    )
    if as_json:
        print(json.dumps(found))
        return
    names = list(dict.fromkeys(name for metrics in found.values() for name in metrics))
    rows = [[name, *(_told(name, metrics.get(name)) for metrics in found.values())] for name in names]
    print(Table(["percent", *found], rows, Path(weights).name).text())


def _told(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if name in ("shapes", "rooms") else f"{100 * value:.2f}"


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.strip().isdigit() for p in parts):
        raise InputError(f"Expected --grid as ROWSxCOLUMNS, such as 8x8 (got {text!r})")
    return int(parts[0]), int(parts[1])
