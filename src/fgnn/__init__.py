"""Solve, learn and segment with factor graphs."""

from __future__ import annotations

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fgnn import (
        data,
        decoding,
        drawing,
        graph,
        infer,
        models,
        nn,
        pgm,
        points,
        report,
        tasks,
        testing,
        theory,
        train,
        weights,
    )
    from fgnn.data_sample import Data, collate
    from fgnn.drawing import draw
    from fgnn.graph import FactorGraph, FactorGroup
    from fgnn.infer import Solution, SolutionBatch, log_partition, marginals
    from fgnn.models.points.segmenter import segment
    from fgnn.pgm import GraphicalModel, ModelBatch, read_model, write_model
    from fgnn.runtime.determinism import deterministic
    from fgnn.solvers import solve

__version__ = "0.1.0"

__all__ = [
    "Data",
    "FactorGraph",
    "FactorGroup",
    "GraphicalModel",
    "ModelBatch",
    "Solution",
    "SolutionBatch",
    "__version__",
    "collate",
    "data",
    "decoding",
    "deterministic",
    "draw",
    "drawing",
    "graph",
    "infer",
    "log_partition",
    "marginals",
    "models",
    "nn",
    "pgm",
    "points",
    "read_model",
    "report",
    "segment",
    "solve",
    "tasks",
    "testing",
    "theory",
    "train",
    "weights",
    "write_model",
]

# The module of each name, imported at its first use: shell completion must not wait for torch, and solving models
# needs no networks.
_FROM = {
    "Data": "fgnn.data_sample",
    "collate": "fgnn.data_sample",
    "deterministic": "fgnn.runtime.determinism",
    "draw": "fgnn.drawing",
    "FactorGraph": "fgnn.graph",
    "FactorGroup": "fgnn.graph",
    "Solution": "fgnn.infer",
    "SolutionBatch": "fgnn.infer",
    "log_partition": "fgnn.infer",
    "marginals": "fgnn.infer",
    "solve": "fgnn.solvers",
    "segment": "fgnn.models.points.segmenter",
    "GraphicalModel": "fgnn.pgm",
    "ModelBatch": "fgnn.pgm",
    "read_model": "fgnn.pgm",
    "write_model": "fgnn.pgm",
}

_IMPORTING = RLock()  # two threads that import modules of one package in different orders can deadlock


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fgnn' has no attribute {name!r}")
    with _IMPORTING:
        value = getattr(import_module(_FROM[name]), name) if name in _FROM else import_module(f"fgnn.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
