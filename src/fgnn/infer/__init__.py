"""MAP inference: one file per solver, and `solve` in front of them."""

from fgnn.infer.api import SOLVERS, solve
from fgnn.infer.solution import Answer, Progress, Solution, SolutionBatch

__all__ = ["SOLVERS", "Answer", "Progress", "Solution", "SolutionBatch", "solve"]
