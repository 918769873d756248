"""The bipartite structure of variables and factors, its batching, matching and conversion."""

from fgnn.graph.edge_types import EdgeTypes
from fgnn.graph.factor_graph import FactorGraph
from fgnn.graph.group import FactorGroup
from fgnn.graph.incidence import Block, Incidence, Side
from fgnn.graph.matching import Matching, perfect_matching

__all__ = ["Block", "EdgeTypes", "FactorGraph", "FactorGroup", "Incidence", "Matching", "Side", "perfect_matching"]
