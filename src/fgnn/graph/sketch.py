"""A factor graph as a sketch to draw, and as HTML."""

from __future__ import annotations

from itertools import pairwise

from fgnn.drawing import Drawing, FactorMark, Sketch, States
from fgnn.drawing.fragment import figure_and_facts
from fgnn.drawing.sketch import GROUP_COLOURS, INLINE_NODES, check_nodes
from fgnn.graph.factor_graph import FactorGraph


def sketch_graph(graph: FactorGraph, states: States) -> Sketch:
    """Factors in one colour per group."""
    check_nodes(graph.num_variables + graph.num_factors)
    states.check(None, graph.num_variables)
    factors = []
    for n, (name, group) in enumerate(graph.groups.items()):
        flat, ptr = group.scopes.reshape(-1).tolist(), group.factor_ptr().tolist()
        colour = GROUP_COLOURS[n % len(GROUP_COLOURS)]
        factors += [FactorMark(tuple(flat[a:b]), name, colour) for a, b in pairwise(ptr)]
    return Sketch(graph.num_variables, tuple(factors), states)


def graph_html(graph: FactorGraph) -> str:
    """The groups of a graph, and a drawing of a small one."""
    facts = [("graphs", f"{graph.num_graphs:,}")] if graph.variable_ptr is not None else []
    facts.append(("variables", f"{graph.num_variables:,}"))
    for name, group in graph.groups.items():
        scope = f"arity {group.arity}" if group.arity is not None else "ragged"
        facts.append((name, f"{group.num_factors:,} factors, {scope}, {group.num_edges:,} edges"))
    small = 0 < graph.num_variables + graph.num_factors <= INLINE_NODES
    picture = Drawing(sketch_graph(graph, States()))._repr_html_() if small else ""
    return figure_and_facts("FactorGraph", facts, picture)
