"""`fgnn train`: train by a recipe, or on a folder of models or scans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fgnn.names import printable


def train(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe file, a packaged recipe's name, or a folder of model files or labelled scans."),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run's folder; by default runs/NAME.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    begin_with: Annotated[
        str | None,
        typer.Option("--from", help="Weights to begin with, such as lidar-aerial: fine-tune them for other classes."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the run's checkpoint.")] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="With --resume: continue with changed settings or data.")
    ] = False,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the network's blocks (faster after a slow start).")
    ] = False,
    time_budget: Annotated[
        float | None, typer.Option("--time-budget", help="Seconds after which to stop with a checkpoint.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Replaces the seed of the recipe.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log for TensorBoard.")] = False,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Bitwise reproducible on a CPU and on one GPU, where it is slower."),
    ] = False,
) -> None:
    """Train a network.

    The folder of the run holds config.yaml, environment.json, metrics.jsonl, curves.png, checkpoint.safetensors and the
    best and last weights. Under torchrun every process takes its share of each batch.

    Examples: fgnn train paper-map-1 --device cuda; fgnn train my-scans/ --from lidar-aerial; fgnn train runs/x --resume
    """
    from fgnn.runtime.determinism import deterministic as repeatable
    from fgnn.train.run import run

    if deterministic:
        repeatable()
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    state, folder = run(
        recipe, out, device=device, compile=compile, resume=resume, time_budget=time_budget, tensorboard=tensorboard,
        allow_changes=allow_changes, begin_with=begin_with, **changes,
    )  # fmt: skip
    if state.metrics:
        metrics = "  ".join(f"{name} {100 * value:.2f} %" for name, value in state.metrics.items() if name != "loss")
        print(printable(f"{folder.path}: step {state.step}, held-out {metrics}"))
    else:
        print(printable(f"{folder.path}: stopped at step {state.step}"))
    if state.signal:
        raise typer.Exit(128 + state.signal)
