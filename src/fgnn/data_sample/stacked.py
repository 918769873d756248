"""How many samples share a structure, by the features (B, ...) that they have of their own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fgnn.data_sample.edge_forms import by_sample
from fgnn.graph import FactorGraph
from fgnn.nn.edge_features import EdgeFeatures

Shapes = dict[str, tuple[int, ...]]


def stacked_shapes(
    graph: FactorGraph, f: Tensor | None, gs: Mapping[str, Tensor], edges: Mapping[str, EdgeFeatures]
) -> Shapes:
    """The shapes of the features (B, ...), by what an error calls them."""
    nodes = {"data.f": f, **{f"data.gs[{name!r}]": g for name, g in gs.items()}}
    shapes = {what: tuple(x.shape) for what, x in nodes.items() if x is not None and x.dim() == 3}
    for name, t in edges.items():
        if isinstance(t, Tensor) and by_sample(name, t, graph.groups[name]):
            shapes[f"data.edges[{name!r}]"] = tuple(t.shape)
    return shapes


def count_stacked(shapes: Shapes) -> int | None:
    """B, where a feature (1, ...) belongs to all samples; None for one sample without B.

    Raises:
        ValueError: Two features are of different numbers of samples.
    """
    several = [(what, shape) for what, shape in shapes.items() if shape[0] != 1]
    for what, shape in several[1:]:
        begin, first = several[0]
        if shape[0] != first[0]:
            expected = "the same number of samples in all features, or 1"
            raise ValueError(f"Expected {expected} (got {begin} of shape {first} and {what} of shape {shape})")
    return several[0][1][0] if several else 1 if shapes else None
