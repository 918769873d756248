"""The theorem as code: max-product belief propagation as a factor graph neural network."""

from fgnn.theory.budget import decompose_budget
from fgnn.theory.decompose import Decomposition, decompose
from fgnn.theory.max_product import MaxProductNetwork, max_product_network

__all__ = ["Decomposition", "MaxProductNetwork", "decompose", "decompose_budget", "max_product_network"]
