"""The part of an ``aggregate_messages`` call that carries no gradient, as every backend reads it."""

from __future__ import annotations

from dataclasses import dataclass

from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn.aggregate import Aggregation


@dataclass(frozen=True, eq=False)
class EdgeCall:
    """The structure and options of one call.

    Attributes:
        relu: Whether σ is ReLU; the identity otherwise.
        types: The type of each edge, which selects its matrix; None if coefficients φ are given.
        batch: B; None if no input has a batch axis.
    """

    incidence: Incidence
    towards: Side
    relu: bool
    aggregation: Aggregation
    types: EdgeTypes | None
    batch: int | None
