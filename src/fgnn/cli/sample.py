"""`fgnn sample`: write a small example to try the other commands on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fgnn.cli.complete import one_of
from fgnn.errors import InputError
from fgnn.names import printable


def sample(
    kind: Annotated[
        str,
        typer.Argument(help="model, scan, recipe or code.", autocompletion=one_of("model", "scan", "recipe", "code")),
    ],
    out: Annotated[Path | None, typer.Option(help="The file to write; by default a name for its kind.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn at random.", min=0)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a small example file, and print the command that uses it.

    model: a noisy picture of 10 × 30 pixels with three labels, to be cleaned (.uai). scan: 20,000 points of an airborne
    survey (.laz, or .ply without laspy). recipe: a training that takes a minute (.yaml). code: a regular LDPC code of
    96 bits (.alist).

    Example: fgnn sample model && fgnn solve grid.uai
    """
    if kind not in _KINDS:
        raise InputError(f"Expected one of {', '.join(_KINDS)} (got {kind!r})")
    name, write, command = _KINDS[kind]
    file = out if out is not None else Path(_scan_name() if kind == "scan" else name)
    if file.exists() and not force:
        raise InputError("the file exists; --force replaces it", file=file)
    if not file.parent.is_dir():
        raise InputError("Expected a folder that exists (got none)", file=file)
    write(file, seed)
    print(printable(f"wrote {file}"))
    print(printable(f"next: {command.format(file=file, stem=file.stem, suffix=file.suffix)}"))


def _model(file: Path, seed: int) -> None:
    """A picture with noise: unary potentials from the noisy pixels, neighbours that prefer equal labels."""
    import numpy as np

    from fgnn import GraphicalModel, write_model

    high, wide, labels = 10, 30, 3
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[:high, :wide]
    truth = np.zeros((high, wide), np.int64)
    truth[(row - 5) ** 2 + (column - 7) ** 2 < 16] = 1
    truth[(row > 2) & (abs(column - 20) < row)] = 2
    seen = truth + rng.normal(0, 0.7, truth.shape)
    model = GraphicalModel([labels] * (high * wide))
    for i, value in enumerate(seen.ravel()):
        model.add_unary(i, -((value - np.arange(labels)) ** 2))
    same = 0.9 * np.eye(labels)
    number = np.arange(high * wide).reshape(high, wide)
    for first, second in ((number[:, :-1], number[:, 1:]), (number[:-1], number[1:])):
        for i, j in zip(first.ravel().tolist(), second.ravel().tolist(), strict=True):
            model.add_table((i, j), same)
    write_model(model, file)


def _scan_name() -> str:
    from importlib.util import find_spec

    return "scan.laz" if find_spec("laspy") is not None else "scan.ply"


def _scan(file: Path, seed: int) -> None:
    from fgnn.data.scenes import make_terrain
    from fgnn.points import write_cloud

    write_cloud(make_terrain(20_000, seed), file)


def _recipe(file: Path, seed: int) -> None:
    from importlib.resources import files

    from fgnn.files import atomic_write

    text = files("fgnn.tasks.recipes").joinpath("tiny.yaml").read_text(encoding="utf-8")
    with atomic_write(file) as target:
        target.write(text.replace("name: tiny", "name: first").replace("seed: 0", f"seed: {seed}"))


def _code(file: Path, seed: int) -> None:
    from fgnn.decoding.regular import alist, regular_code
    from fgnn.files import atomic_write

    with atomic_write(file) as target:
        target.write(alist(regular_code(96, 3, 6, seed)))


# name of the file, what writes it, the command that uses it
_KINDS: dict[str, tuple[str, Callable[[Path, int], None], str]] = {
    "model": ("grid.uai", _model, "fgnn solve {file} --time-limit 10"),
    "scan": ("scan.laz", _scan, "fgnn segment {file} --out {stem}.labelled{suffix} --html scan.html"),
    "recipe": ("recipe.yaml", _recipe, "fgnn train {file}"),
    "code": ("code.alist", _code, "fgnn decode {file} --snr 3"),
}
