"""Factor graph neural networks: solvers, layers, the max-product theorem as code, and the experiments."""

from __future__ import annotations

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fgnn import data, graph, infer, models, nn, pgm, points, testing, theory, train
    from fgnn.graph import FactorGraph, FactorGroup
    from fgnn.infer import Solution, SolutionBatch, solve
    from fgnn.models.points.segmenter import segment
    from fgnn.pgm import GraphicalModel, ModelBatch, read_model, write_model
    from fgnn.runtime.determinism import deterministic

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

# Where each name comes from. It is imported when it is first asked for: a shell that completes a command line cannot
# wait for torch, and a program that solves models has no use for networks.
_FROM = {
    "deterministic": "fgnn.runtime.determinism",
    "FactorGraph": "fgnn.graph",
    "FactorGroup": "fgnn.graph",
    "Solution": "fgnn.infer",
    "SolutionBatch": "fgnn.infer",
    "solve": "fgnn.infer",
    "segment": "fgnn.models.points.segmenter",
    "GraphicalModel": "fgnn.pgm",
    "ModelBatch": "fgnn.pgm",
    "read_model": "fgnn.pgm",
    "write_model": "fgnn.pgm",
}

_IMPORTING = RLock()  # two threads that import parts of one package by different ways can wait for each other


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fgnn' has no attribute {name!r}")
    with _IMPORTING:
        found = getattr(import_module(_FROM[name]), name) if name in _FROM else import_module(f"fgnn.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
