"""The theorem as code: max-product belief propagation as a factor graph neural network."""

from fgnn.theory.budget import decompose_budget
from fgnn.theory.decompose import Decomposition, decompose

__all__ = ["Decomposition", "decompose", "decompose_budget"]
