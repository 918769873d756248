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
}


class InputError(ValueError):
    """An input that cannot be used: one line that says what is wrong and where.

    The command line prints it as it is and exits with 2.
    """

    def __init__(self, what: str, *, file: str | Path | None = None, place: str = "") -> None:
        where = ", ".join(part for part in (str(file) if file is not None else "", place) if part)
        super().__init__(f"{where}: {what}" if where else what)


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
