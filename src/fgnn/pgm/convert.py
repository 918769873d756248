"""Models in the form of other packages."""

from __future__ import annotations

from typing import Any

from fgnn.graph.convert import bipartite_graph
from fgnn.pgm.factors import StructuredFactor
from fgnn.pgm.model import GraphicalModel


def to_networkx(model: GraphicalModel) -> Any:
    """The factor graph of a model as a bipartite `networkx.Graph`.

    Nodes are ``("variable", i)``, ``("table", c)``, ``("budget", c)`` and, for structured factors, the name of the kind
    and c, in insertion order, with the attributes

    - all nodes: ``kind``, the first of the pair, and ``bipartite``, 0 for variables and 1 for factors;
    - variables: ``cardinality`` and ``unary``, the log-potentials θ_i;
    - tables: ``scope`` and ``table``, the log-potentials θ_c;
    - budgets: ``scope``, ``at_least`` and ``at_most``;
    - structured factors: ``scope``, and the numbers and fields of their kind.

    An edge joins a factor to each variable of its scope; ``axis`` is the variable's position there. The graph
    attribute ``constant`` is the model's constant.
    """
    tables, budgets = list(model.tables()), list(model.budgets())
    scopes = {"table": [t.scope for t in tables], "budget": [b.scope for b in budgets]}
    structured: dict[str, list[StructuredFactor]] = {}
    for factor in model.structured():
        structured.setdefault(factor.kind.name, []).append(factor)
    scopes |= {name: [factor.scope for factor in members] for name, members in structured.items()}
    graph = bipartite_graph(model.num_variables, scopes, position="axis")
    graph.graph["constant"] = model.constant
    for i, k in enumerate(model.cardinalities.tolist()):
        graph.nodes["variable", i].update(cardinality=k, unary=model.unary(i).copy())
    for c, table in enumerate(tables):
        graph.nodes["table", c].update(scope=table.scope, table=table.values.copy())
    for c, budget in enumerate(budgets):
        graph.nodes["budget", c].update(scope=budget.scope, at_least=budget.at_least, at_most=budget.at_most)
    for name, members in structured.items():
        for c, factor in enumerate(members):
            graph.nodes[name, c].update(scope=factor.scope, **factor.kind.arrays(), **factor.numbers)
    return graph
