"""A perfect matching between variables and factors, by which an FGNN layer becomes an MPNN layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.graph.group import FactorGroup


@dataclass(frozen=True, eq=False)
class Matching:
    r"""An invertible :math:`h: \mathcal{V} \to \mathcal{C}` with :math:`i \in s(h(i))` (section 3.2).

    Attributes:
        factor: (N,) h(i) of each variable.
        variable: (C,) its inverse.
    """

    factor: Tensor
    variable: Tensor


def perfect_matching(group: FactorGroup, num_variables: int) -> Matching:
    """Match each variable to a factor of its own that contains it (Hopcroft–Karp), or say why none exists.

    Raises:
        ValueError: The reason: unequal numbers, or a set of factors that together hold too few variables.
    """
    if group.num_factors != num_variables:
        raise ValueError(
            f"Expected as many factors as variables for a perfect matching "
            f"(got {group.num_factors} factors and {num_variables} variables)"
        )
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    factors = group.factor_index().cpu().numpy()
    variables = group.scopes.reshape(-1).cpu().numpy()
    graph = csr_matrix((np.ones(len(factors), dtype=bool), (factors, variables)), shape=(num_variables, num_variables))
    # a factor that holds the variable of its own number, as in a k-NN graph, is the natural match
    if num_variables and graph.diagonal().all():
        match = np.arange(num_variables)
    else:
        match = maximum_bipartite_matching(graph, perm_type="column").astype(np.int64)  # variable of each factor
    if (match < 0).any():
        raise ValueError(_reason(graph, match))
    inverse = np.empty(num_variables, dtype=np.int64)
    inverse[match] = np.arange(num_variables)
    return Matching(torch.from_numpy(inverse).to(group.device), torch.from_numpy(match).to(group.device))


def _reason(graph: Any, match: np.ndarray) -> str:
    """Hall's condition: the factors reached by alternating paths from an unmatched one hold one variable too few."""
    indptr, indices = graph.indptr, graph.indices
    holder = {int(i): int(c) for c, i in enumerate(match) if i >= 0}
    first = int(np.nonzero(match < 0)[0][0])
    seen, held, stack = {first}, set(), [first]
    while stack:
        c = stack.pop()
        for i in indices[indptr[c] : indptr[c + 1]].tolist():
            held.add(i)
            if holder[i] not in seen:
                seen.add(holder[i])
                stack.append(holder[i])
    shown = sorted(seen)
    names = ", ".join(map(str, shown[:6])) + (", ..." if len(shown) > 6 else "")
    return (
        f"Expected a perfect matching of factors and variables (got none: the {len(seen)} factors {names} "
        f"hold only {len(held)} variables between them)"
    )
