"""The bipartite structure of variables and factors, its batching, matching and conversion."""

from fgnn.graph import pytree as pytree  # registers graphs as pytrees
from fgnn.graph.derived import by_handle, exporting, tracing, transformed
from fgnn.graph.edge_types import EdgeTypes
from fgnn.graph.factor_graph import FactorGraph
from fgnn.graph.group import FactorGroup
from fgnn.graph.incidence import Block, Hints, Incidence, Side, TracedIncidence
from fgnn.graph.matching import Matching, perfect_matching
from fgnn.graph.padded import PaddedIncidence, padded_width, slots_by_target
from fgnn.graph.structure import Structure

__all__ = [
    "Block",
    "EdgeTypes",
    "FactorGraph",
    "FactorGroup",
    "Hints",
    "Incidence",
    "Matching",
    "PaddedIncidence",
    "Side",
    "Structure",
    "TracedIncidence",
    "by_handle",
    "exporting",
    "padded_width",
    "perfect_matching",
    "slots_by_target",
    "tracing",
    "transformed",
]
