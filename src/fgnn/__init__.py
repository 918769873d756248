"""Factor graph neural networks: solvers, layers, the max-product theorem as code, and the experiments."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fgnn.determinism import deterministic
from fgnn.graph import FactorGraph, FactorGroup
from fgnn.infer import Solution, SolutionBatch, solve
from fgnn.pgm import GraphicalModel, ModelBatch, read_model, write_model

if TYPE_CHECKING:
    from fgnn import data, graph, infer, models, nn, pgm, points, testing, theory, train
    from fgnn.models.segmenter import segment

__version__ = "0.1.0"

__all__ = [
    "FactorGraph",
    "FactorGroup",
    "GraphicalModel",
    "ModelBatch",
    "Solution",
    "SolutionBatch",
    "__version__",
    "data",
    "deterministic",
    "graph",
    "infer",
    "models",
    "nn",
    "pgm",
    "points",
    "read_model",
    "segment",
    "solve",
    "testing",
    "theory",
    "train",
    "write_model",
]

_SUBPACKAGES = {"data", "graph", "infer", "models", "nn", "pgm", "points", "testing", "theory", "train"}


def __getattr__(name: str) -> Any:
    """Import a subpackage when it is first asked for: `import fgnn` costs torch and little else."""
    if name in _SUBPACKAGES:
        return import_module(f"fgnn.{name}")
    if name == "segment":
        return import_module("fgnn.models.segmenter").segment
    raise AttributeError(f"module 'fgnn' has no attribute {name!r}")
