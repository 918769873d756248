"""MAP inference: `solve` and the solvers behind it."""

from fgnn.infer.api import SOLVERS, solve
from fgnn.infer.solution import Answer, Progress, Solution, SolutionBatch

__all__ = ["SOLVERS", "Answer", "Progress", "Solution", "SolutionBatch", "solve"]
