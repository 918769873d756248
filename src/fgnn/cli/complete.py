"""What the shell completes: values of arguments and options. Nothing here imports torch unless it has to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """Complete one of a few words."""
    return lambda incomplete: _starting(choices, incomplete)


complete_device = one_of("auto", "cpu", "cuda", "cuda:0", "cuda:1")


def complete_weights(incomplete: str) -> list[str]:
    """Complete a packaged name, or a run or a file."""
    names = sorted(file.stem for file in (_PACKAGE / "weights").glob("*.safetensors"))
    return _starting(names, incomplete) + _paths(incomplete, (".safetensors",))


def complete_recipe(incomplete: str) -> list[str]:
    """Complete a packaged recipe, or a folder or a file."""
    names = sorted(file.stem for file in (_PACKAGE / "tasks" / "recipes").glob("*.yaml"))
    return _starting(names, incomplete) + _paths(incomplete, (".yaml", ".yml"))


def complete_solver(incomplete: str) -> list[str]:
    """Complete a method of ``fgnn solve``."""
    from fgnn.solvers import SOLVERS

    return _starting(SOLVERS, incomplete)


def complete_solver_option(ctx: Any, incomplete: str) -> list[str]:
    """Complete an option of the method of ``fgnn solve``, or its value."""
    from fgnn.solvers import SOLVERS

    return _option(ctx, incomplete, SOLVERS, "auto")


def complete_marginals_method(incomplete: str) -> list[str]:
    """Complete a method of ``fgnn marginals``."""
    from fgnn.infer import METHODS

    return _starting(METHODS, incomplete)


def complete_marginals_option(ctx: Any, incomplete: str) -> list[str]:
    """Complete an option of the method of ``fgnn marginals``, or its value."""
    from fgnn.infer import METHODS

    return [word for word in _option(ctx, incomplete, METHODS, "auto") if not word.startswith("tables=")]


def complete_decoder(incomplete: str) -> list[str]:
    """Complete a method of ``fgnn decode``."""
    from fgnn.decoding import METHODS

    return _starting(METHODS, incomplete)


def complete_decoder_option(ctx: Any, incomplete: str) -> list[str]:
    """Complete an option of the method of ``fgnn decode``, or its value."""
    from fgnn.decoding import METHODS

    return _option(ctx, incomplete, METHODS, "min-sum")


def _option(ctx: Any, incomplete: str, methods: Mapping[str, Any], default: str) -> list[str]:
    """``name=`` for the options of the method on the command line; ``name=value`` for one that has choices."""
    from fgnn.infer.methods import choices, named, option_kinds

    method = ctx.params.get("method") or default
    if method not in methods:
        return []
    kinds = option_kinds(named(method, methods)) or {}
    name, equals, _ = incomplete.partition("=")
    texts = (f"{name}={text}" for text in choices(kinds.get(name))) if equals else (f"{name}=" for name in kinds)
    return _starting(texts, incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Folders, and files with one of the suffixes, that begin so."""
    folder, _, start = incomplete.rpartition("/")
    place = Path(f"{folder}/") if folder or incomplete.startswith("/") else Path()
    try:
        entries = sorted(entry for entry in place.iterdir() if entry.name.startswith(start) and entry.name[0] != ".")
    except OSError:
        return []
    prefix = incomplete[: len(incomplete) - len(start)]
    folders = [f"{prefix}{entry.name}/" for entry in entries if entry.is_dir()]
    return folders + [f"{prefix}{entry.name}" for entry in entries if entry.suffix in suffixes]
