"""Inference: `solve` for the best assignment, `marginals` and `log_partition` for probabilities."""

from fgnn.infer.api import SOLVERS, solve
from fgnn.infer.exact.best_assignments import best_assignments
from fgnn.infer.probability import (
    METHODS,
    Beliefs,
    LogPartition,
    Marginals,
    MarginalsBatch,
    log_partition,
    marginals,
    sample,
)
from fgnn.infer.solution import Answer, Progress, Solution, SolutionBatch

__all__ = [
    "METHODS",
    "SOLVERS",
    "Answer",
    "Beliefs",
    "LogPartition",
    "Marginals",
    "MarginalsBatch",
    "Progress",
    "Solution",
    "SolutionBatch",
    "best_assignments",
    "log_partition",
    "marginals",
    "sample",
    "solve",
]
