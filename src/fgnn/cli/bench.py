"""`fgnn bench`: benchmarks against peers in one run, as JSON and as a page with charts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from fgnn.cli.complete import complete_device
from fgnn.errors import InputError
from fgnn.names import printable
from fgnn.runtime.progress import Stages

bench = typer.Typer(help="Benchmark against peers in one run; writes JSON and a page.", no_args_is_help=True)

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...", autocompletion=complete_device)]
Out = Annotated[Path | None, typer.Option(help="JSON file or folder; benchmarks/results by default.")]
Seed = Annotated[int, typer.Option(help="Seed of the generated inputs.")]


@bench.command()
def solvers(
    count: Annotated[int, typer.Option(help="Number of models; slow peers see fewer.", min=1)] = 10_000,
    kind: Annotated[int, typer.Option(help="Kind of chain data: 1, 2 or 3.", min=1, max=3)] = 1,
    device: Device = "cpu",
    seed: Seed = 0,
    growth: Annotated[bool, typer.Option(help="Also time longer chains and wider windows.")] = True,
    toulbar2_limit: Annotated[
        float, typer.Option(help="Seconds for toulbar2 on each of those; 0 skips it.", min=0)
    ] = 0.0,
    out: Out = None,
) -> None:
    """Every solver of MAP (maximum a posteriori) inference on chain models: time per model, and its growth.

    Example: fgnn bench solvers --count 1000 --toulbar2-limit 60
    """
    _run(
        "fgnn.bench.solvers",
        count=count, kind=kind, device=device, seed=seed, grow=growth, toulbar2_limit=toulbar2_limit, out=out,
    )  # fmt: skip


@bench.command()
def anytime(
    only: Annotated[list[str] | None, typer.Option(help="Instances by pattern, such as 'glass/*'. Repeatable.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Methods by pattern, such as 'toulbar2*'. Repeatable.")
    ] = None,
    seconds: Annotated[list[float] | None, typer.Option(help="Time limits; 1, 5 and 20 by default.", min=0.01)] = None,
    again: Annotated[list[str] | None, typer.Option(help="Methods by pattern, to measure again. Repeatable.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of benchmark data; FGNN_DATA by default.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of each method; all cores by default.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the methods; instances have their own.")] = 0,
    out: Out = None,
) -> None:
    """Score against time, for our methods and their peers, on named instances.

    Runs already in the result file are kept, so it can be run in slices and continued.

    Example: fgnn bench anytime --only 'glass/*' --seconds 1 --seconds 5
    """
    _run(
        "fgnn.bench.anytime.benchmark",
        only=tuple(only or ()), methods=tuple(method or ()), seconds=tuple(seconds or (1.0, 5.0, 20.0)),
        again=tuple(again or ()), data=data, device="cpu", threads=threads, seed=seed, out=out,
    )  # fmt: skip


@bench.command()
def layer(device: Device = "cpu", seed: Seed = 0, out: Out = None) -> None:
    """One FGNN layer, forward and backward, against other implementations.

    Example: fgnn bench layer --device cuda --out results
    """
    _run("fgnn.bench.layer", device=device, seed=seed, out=out)


@bench.command()
def step(
    batch: Annotated[
        list[int] | None, typer.Option(help="Chains in a batch; 1,024 and 16,384 by default.", min=1)
    ] = None,
    compiled: Annotated[bool, typer.Option(help="Also through torch.compile.")] = True,
    points: Annotated[int, typer.Option(help="Points in each cloud of the point network; 0: none.", min=0)] = 4096,
    device: Device = "cpu",
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """A training step in a loop of one's own: eager, recorded and compiled.

    Example: fgnn bench step --device cuda
    """
    batches = tuple(batch or (1024, 16384))
    _run("fgnn.bench.step", batches=batches, compiled=compiled, points=points, device=device, seed=seed, out=out)


@bench.command()
def knn(device: Device = "cpu", seed: Seed = 0, out: Out = None) -> None:
    """Nearest neighbours in point clouds, against other implementations.

    Example: fgnn bench knn --out results
    """
    _run("fgnn.bench.knn", device=device, seed=seed, out=out)


@bench.command()
def decoding(
    only: Annotated[
        list[str] | None, typer.Option(help="Tables by pattern, such as 'surface*' or '5G*'. Repeatable.")
    ] = None,
    shots: Annotated[
        int, typer.Option(help="Shots of each circuit; codes and surface codes have fifty times as many.", min=10)
    ] = 2000,
    seconds: Annotated[float, typer.Option(help="Seconds for each decoder on each problem.", min=0.1)] = 30.0,
    weights: Annotated[
        list[str] | None, typer.Option(help="Learned decoders: for codes at 4 dB, then for bursts.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of benchmark data; FGNN_DATA by default.")] = None,
    device: Device = "cpu",
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Decoders of codes and circuits on one core, against ldpc, relay-bp, PyMatching and Sionna on the same shots.

    Tables already in the result file are kept, so it can be run in slices.

    Example: fgnn bench decoding --only 'surface*' --shots 1000
    """
    _run(
        "fgnn.bench.decoding.benchmark",
        only=tuple(only or ()), shots=shots, seconds=seconds, weights=tuple(weights or ()), data=data, device=device,
        seed=seed, out=out,
    )  # fmt: skip


@bench.command()
def points(
    device: Device = "cpu",
    clouds: Annotated[int | None, typer.Option(help="Clouds per batch; 32 on a GPU, otherwise 2.", min=1)] = None,
    size: Annotated[int, typer.Option("--points", help="Points per cloud.", min=32)] = 2048,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """FGNN, PointNet, DGCNN and PointCNN: a training step, and labelling shapes.

    Example: fgnn bench points --device cuda
    """
    _run("fgnn.bench.points", device=device, clouds=clouds, points=size, seed=seed, out=out)


@bench.command()
def segment(
    points: Annotated[list[int] | None, typer.Option(help="Points of a scan; by default 1 and 10 million.")] = None,
    votes: Annotated[list[int] | None, typer.Option(help="Overlapping tiles per point: 4, 2 or 1.")] = None,
    model: Annotated[str, typer.Option(help="Weights, as for fgnn segment.")] = "lidar-aerial",
    device: Device = "cpu",
    batch: Annotated[int | None, typer.Option(help="Pieces labelled at once.", min=1)] = None,
    suffix: Annotated[str, typer.Option(help=".laz, or .npy if laspy is not installed.")] = ".laz",
    method: Annotated[str, typer.Option(help="network, or a classical filter, as for fgnn segment.")] = "network",
    out: Out = None,
) -> None:
    """`fgnn segment` on generated scans, file to file: speed and memory.

    Example: fgnn bench segment --points 1000000 --votes 4 --votes 1
    """
    _run(
        "fgnn.bench.segment",
        points=tuple(points or (1_000_000, 10_000_000)), votes=tuple(votes or (4,)), model=model, device=device,
        batch=batch, suffix=suffix, method=method, out=out,
    )  # fmt: skip


@bench.command()
def training(
    recipes: Annotated[list[str], typer.Argument(help="Recipes, by name or file.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    steps: Annotated[int, typer.Option(help="Timed steps.", min=1)] = 20,
    batch: Annotated[list[int] | None, typer.Option(help="Other batch sizes than the recipes'.", min=1)] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the network's blocks.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also list the kernels of a step by time.")] = False,
    out: Out = None,
) -> None:
    """Training steps of a recipe: instances per second, and time by part.

    Example: fgnn bench training paper-map-1 --device cuda
    """
    from fgnn.bench.training import bench_training, keep, report

    results = []
    for recipe in recipes:
        for size in batch or [0]:
            changes: dict[str, Any] = {"batch": size} if size else {}
            with Stages("bench training") as stage:
                stage(f"{recipe}, {steps} steps" + (f" of {size:,}" if size else ""))
                times = bench_training(recipe, device=device, steps=steps, compile=compile, profile=profile, **changes)
            typer.echo(report(times))
            results.append(times)
    _print_place(keep(results, device, out))


@bench.command()
def marginals(
    data: Annotated[
        Path | None, typer.Argument(help="Folder or archive of .uai files with references .PR and .MAR.")
    ] = None,
    speed: Annotated[bool, typer.Option("--speed", help="Measure speed beside other packages.")] = False,
    network: Annotated[Path | None, typer.Option(help="With --speed: a .bif network, for pgmpy and pyAgrum.")] = None,
    task: Annotated[str | None, typer.Option(help="PR or MAR alone.")] = None,
    time_limit: Annotated[float, typer.Option("--time-limit", "-t", help="Seconds for each instance.")] = 20.0,
    device: Device = "cpu",
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Marginals and log Z on competition instances, or their speed.

    Example: fgnn bench marginals uai2014_mar_pr.tar.xz --time-limit 20
    """
    if task not in (None, "PR", "MAR"):
        raise InputError(f"Expected the task PR or MAR (got {task!r})")
    if speed:
        _run("fgnn.bench.marginals_speed", network=network, device=device, seed=seed, out=out)
    elif data is None:
        raise InputError("Expected a folder or an archive of .uai files, or --speed")
    else:
        _run("fgnn.bench.marginals", data=data, task=task, time_limit=time_limit, device=device, seed=seed, out=out)


@bench.command()
def page(results: Annotated[list[Path], typer.Argument(help="Results as JSON.")]) -> None:
    """Write the page of an existing result next to it, such as one from another machine.

    Example: fgnn bench page benchmarks/results/layer-cuda.json
    """
    from fgnn.report.bench_page import page_of_file

    for file in results:
        typer.echo(printable(f"written to {page_of_file(file)}"))


def _run(module: str, **options: Any) -> None:
    """Call a benchmark's ``run`` and print where its result is."""
    from fgnn.runtime.devices import pick_device

    pick_device(options["device"])
    _print_place(Path(import_module(module).run(**options)["file"]))


def _print_place(file: Path) -> None:
    typer.echo(printable(f"written to {file}, and as a page to {file.with_suffix('.html')}"))
