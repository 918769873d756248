"""The paper's theorem as code: max-product and sum-product belief propagation as factor graph neural networks."""

from fgnn.theory.budget import decompose_budget
from fgnn.theory.decompose import Decomposition, decompose, maximum_of_terms
from fgnn.theory.decomposition_network import DecompositionNetwork, decomposition_network
from fgnn.theory.diagrams import draw_layer, draw_module, draw_shrinking
from fgnn.theory.matching import MatchedMPNN, to_mpnn
from fgnn.theory.max_product import MaxProductNetwork, max_product_network
from fgnn.theory.picture import draw_messages
from fgnn.theory.row_max import RowMax, row_max_network
from fgnn.theory.sum_product import SumProductNetwork, sum_product_network
from fgnn.theory.sum_through_max import SumThroughMax, sum_through_max

__all__ = [
    "Decomposition",
    "DecompositionNetwork",
    "MatchedMPNN",
    "MaxProductNetwork",
    "RowMax",
    "SumProductNetwork",
    "SumThroughMax",
    "decompose",
    "decompose_budget",
    "decomposition_network",
    "draw_layer",
    "draw_messages",
    "draw_module",
    "draw_shrinking",
    "max_product_network",
    "maximum_of_terms",
    "row_max_network",
    "sum_product_network",
    "sum_through_max",
    "to_mpnn",
]
