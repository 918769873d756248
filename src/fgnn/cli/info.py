"""`fgnn info`: versions, devices, methods and weights, for bug reports."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from typing import Annotated, Any

import typer

_PACKAGES = (
    "torch", "numpy", "scipy", "safetensors", "typer", "rich", "pyyaml", "pytoulbar2", "joblib", "numba", "h5py",
    "laspy", "trimesh", "pypcd4", "torch-geometric", "triton", "matplotlib", "plotly", "networkx", "tensorboard",
)  # fmt: skip


def info(as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """Show versions, devices, and the available methods and weights.

    Example: fgnn info --json
    """
    facts = gather()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, entry in value.items():
                print(f"  {key:<16} {entry}")
        else:
            print(f"{name:<18} {value}")


def _backend() -> str:
    """Return the backend of layers on this machine, and the reason if it is plain torch."""
    import torch

    from fgnn.nn.backends.choice import why_unsupported

    if not torch.cuda.is_available():
        return "torch (no CUDA device)"
    why = why_unsupported(torch.device("cuda"), torch.float32)
    return "triton" if why is None else f"torch ({why})"


def _methods() -> list[str]:
    """Return the methods of `solve` whose packages are installed."""
    from importlib.util import find_spec

    from fgnn.solvers import SOLVERS

    absent = {"toulbar2"} if find_spec("pytoulbar2") is None else set()
    return [name for name in SOLVERS if name not in absent]


def gather() -> dict[str, Any]:
    """Return the facts as plain values."""
    import torch

    import fgnn
    from fgnn.weights import weight_names

    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "not installed"
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "fgnn": fgnn.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": ", ".join(devices) if devices else "none",
        "layer backend": _backend(),
        "executable": sys.executable,
        "methods": ", ".join(_methods()),
        "weights": ", ".join(weight_names()) or "none",
        "packages": packages,
    }
