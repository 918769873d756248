"""`fgnn train`: train by a recipe, or on a folder of models or scans."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgnn.cli.complete import complete_device, complete_recipe, complete_weights
from fgnn.names import printable

if TYPE_CHECKING:
    from fgnn.train.checkpoint import State
    from fgnn.train.run_folder import RunFolder


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe file, a packaged recipe's name, or a folder of model files or labelled scans.",
            autocompletion=complete_recipe,
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; by default runs/NAME.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...", autocompletion=complete_device)] = "auto",
    begin_with: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Weights to begin with, such as lidar-aerial: fine-tune them for other classes.",
            autocompletion=complete_weights,
        ),
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
    from fgnn.report.curves import metric_label
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
        metrics = "  ".join(
            f"{metric_label(name)} {100 * value:.2f} %" for name, value in state.metrics.items() if name != "loss"
        )
        print(printable(f"{folder.path}: step {state.step}, held-out {metrics}"))
    else:
        print(printable(f"{folder.path}: stopped at step {state.step}"))
    print(printable(f"next: {_next(state, folder)}"))
    if state.signal:
        raise typer.Exit(128 + state.signal)


def _next(state: State, folder: RunFolder) -> str:
    """The command that continues the run, or uses what it trained."""
    from fgnn.tasks.recipe import TrainedOn
    from fgnn.tasks.scan_folder import scan_files
    from fgnn.weights.cards import read_card

    place = shlex.quote(str(folder.path))
    if not state.finished:
        return f"fgnn train {place} --resume"
    card = read_card(folder.path)
    data = card.part(TrainedOn).data
    if card.task == "crf":
        return f"fgnn marginals {shlex.quote(str(folder.path / 'model.fgm'))}"
    if data.codes is not None:
        return f"fgnn decode {shlex.quote(data.codes.files[0])} --method fgnn -o weights={place}"
    if data.folder is not None:
        models = sorted(file for file in Path(data.folder).iterdir() if file.is_file())
        return f"fgnn solve {shlex.quote(str(models[0]))} --method fgnn -o weights={place}"
    if data.scans is not None:
        scans = scan_files(Path(data.scans.root), data.scans.classes)
        held_out = next((file for file in scans if file.name in data.scans.held_out), scans[-1])
        return f"fgnn segment {shlex.quote(str(held_out))} --model {place}"
    return f"fgnn evaluate {place}"
