"""All solvers behind `fgnn.solve`: those of `fgnn.infer` and the learned one of `fgnn.models`."""

from fgnn.infer.api import SOLVERS, solve, solver_named

__all__ = ["SOLVERS", "solve", "solver_named"]

SOLVERS["fgnn"] = "fgnn.models.map.learned:solve_fgnn"
