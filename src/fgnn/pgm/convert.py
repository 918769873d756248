"""Models in the form of other packages."""

from __future__ import annotations

from typing import Any

from fgnn.errors import need
from fgnn.pgm.model import GraphicalModel


def to_networkx(model: GraphicalModel) -> Any:
    """The factor graph of a model as a bipartite `networkx.Graph`.

    Nodes are ``("variable", i)``, ``("table", c)`` and ``("budget", c)``, in the model's order, with the attributes

    - of all: ``kind``, the first of the pair, and ``bipartite``, 0 for variables and 1 for factors;
    - of variables: ``cardinality`` and ``unary``, the log-potentials θ_i;
    - of tables: ``scope`` and ``table``, the log-potentials θ_c;
    - of budgets: ``scope``, ``at_least`` and ``at_most``.

    An edge joins a factor to each variable of its scope; its ``axis`` is the variable's position there. The graph's
    attribute ``constant`` is the model's.
    """
    networkx = need("networkx")
    graph = networkx.Graph(constant=model.constant)
    for i, k in enumerate(model.cardinalities.tolist()):
        graph.add_node(("variable", i), kind="variable", bipartite=0, cardinality=k, unary=model.unary(i).copy())
    for c, table in enumerate(model.tables()):
        node = ("table", c)
        graph.add_node(node, kind="table", bipartite=1, scope=table.scope, table=table.values.copy())
        graph.add_edges_from((node, ("variable", i), {"axis": a}) for a, i in enumerate(table.scope))
    for c, budget in enumerate(model.budgets()):
        node = ("budget", c)
        bounds = {"at_least": budget.at_least, "at_most": budget.at_most}
        graph.add_node(node, kind="budget", bipartite=1, scope=budget.scope, **bounds)
        graph.add_edges_from((node, ("variable", i), {"axis": a}) for a, i in enumerate(budget.scope))
    return graph
