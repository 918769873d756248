"""The errors a person can act on, and the way optional packages are asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

_EXTRAS = {
    "pytoulbar2": "solvers",
    "joblib": "solvers",
    "h5py": "points",
    "laspy": "points",
    "trimesh": "points",
    "pypcd4": "points",
    "torch_geometric": "pyg",
    "matplotlib": "viz",
    "plotly": "viz",
    "networkx": "viz",
    "tensorboard": "logging",
    "lazrs": "points",
    "lzf": "points",
}


class InputError(ValueError):
    """An input that cannot be used: one line that says what is wrong and where.

    The command line prints it as it is and exits with 2. What a file holds may stand in the message, so whatever would
    not print is written as an escape, and what is long is cut.
    """

    def __init__(self, what: str, *, file: str | Path | None = None, place: str = "") -> None:
        told = (_printable(str(file)) if file is not None else "", _short(place, 100))
        where = ", ".join(part for part in told if part)
        super().__init__(f"{where}: {_short(what)}" if where else _short(what))


def reason(error: BaseException, otherwise: str = "") -> str:
    """What a library said of its failure, in part of a line; if nothing, ``otherwise``, or else the kind of error."""
    said = str(error).splitlines()
    return said[0][:80] if said else otherwise or type(error).__name__


def _short(text: str, most: int = 300) -> str:
    shown = _printable(text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _printable(text: str) -> str:
    """The text without line ends and other characters that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class MissingExtra(ImportError):
    """An optional package is needed and absent; the message names the extra that brings it."""


def need(module: str) -> Any:
    """Import an optional module, or say which extra brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        extra = _EXTRAS[package]
        raise MissingExtra(f"{package} is needed here: pip install 'fgnn[{extra}]'") from error
