"""Random factor graphs and features for them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from fgnn import FactorGraph, FactorGroup


def uniform_graph() -> FactorGraph:
    """Two groups of fixed arity; variable 6 is in no scope."""
    return FactorGraph(
        7,
        {
            "pair": FactorGroup([[0, 1], [1, 2], [2, 0], [5, 3]]),
            "triple": FactorGroup([[0, 1, 2], [4, 3, 1], [5, 4, 0], [0, 5, 2], [3, 4, 2]]),
        },
    )


def ragged_graph() -> FactorGraph:
    """Scopes of length 0 to 4 beside a uniform group; variables 6 and 7 are in no scope."""
    return FactorGraph(
        8,
        {
            "any": FactorGroup([[0], [2, 1, 3], [], [4, 2], [0, 1, 2, 3], [3]]),
            "pair": FactorGroup([[0, 5], [5, 1]]),
        },
    )


def features(
    graph: FactorGraph,
    variable_in: int,
    factor_in: dict[str, int],
    edge_in: dict[str, int],
    *,
    batch: int | None = None,
    types: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """f, gs, and edge features shared by all samples."""
    rng = torch.Generator().manual_seed(seed)
    lead = () if batch is None else (batch,)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    f = normal(*lead, graph.num_variables, variable_in)
    gs = {name: normal(*lead, group.num_factors, factor_in[name]) for name, group in graph.groups.items()}
    edges = {}
    for name, group in graph.groups.items():
        if types:
            edges[name] = torch.randint(edge_in[name], (group.num_edges,), generator=rng)
        else:
            edges[name] = normal(group.num_edges, edge_in[name])
    return f, gs, edges


@st.composite
def graphs(draw: st.DrawFn, max_variables: int = 8, max_factors: int = 5) -> FactorGraph:
    """One to three groups, uniform or ragged, with empty scopes and isolated variables."""
    n = draw(st.integers(1, max_variables))
    groups = {}
    for k in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, max_factors))
        if draw(st.booleans()):
            arity = draw(st.integers(1, min(4, n)))
            sizes = [arity] * count
        else:
            sizes = draw(st.lists(st.integers(0, min(4, n)), min_size=count, max_size=count))
        scopes = [draw(st.permutations(range(n)))[:size] for size in sizes]
        groups[f"type{k}"] = FactorGroup(scopes)
    return FactorGraph(n, groups)
