"""Errors that a user can act on, and the import of optional packages."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from fgnn.names import printable as printable

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
    "ortools": "peers",
    "ldpc": "peers",
    "relay_bp": "peers",
    "pymatching": "peers",
    "sionna": "peers",
    "stim": "decoding",
    "sinter": "decoding",
}


class InputError(ValueError):
    """Unusable input, described in one line that says what is wrong and where.

    The command line prints it and exits with code 2. Messages may quote a file, so unprintable characters are escaped
    and long texts are cut.

    Attributes:
        file: The file at fault, if the message names one.
    """

    def __init__(self, what: str, *, file: str | Path | None = None, place: str = "") -> None:
        parts = (printable(str(file)) if file is not None else "", _short(place, 100))
        where = ", ".join(part for part in parts if part)
        self.file = file
        super().__init__(f"{where}: {_short(what)}" if where else _short(what))


def reason(error: BaseException, otherwise: str = "") -> str:
    """Return the start of another library's error message, else ``otherwise``, else the name of the error's class."""
    lines = str(error).splitlines()
    return lines[0][:80] if lines else otherwise or type(error).__name__


def _short(text: str, most: int = 300) -> str:
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 3] + "..."


class MissingExtra(ImportError):
    """A missing optional package; the message names the extra that installs it."""


def need(module: str) -> Any:
    """Import an optional module, or raise `MissingExtra` with the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        what = f"'fgnn[{_EXTRAS[package]}]'" if package in _EXTRAS else package
        raise MissingExtra(f"{package} is needed here: pip install {what}") from error
