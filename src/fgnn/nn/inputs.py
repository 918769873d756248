"""Check the inputs of a layer once per structure and shapes, and name the tensor, the group and both shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph
from fgnn.nn.edge_features import flatten_edges

_ORDER = "the arguments are (graph, f, gs, edges)"


@dataclass(frozen=True)
class Widths:
    """The features that a layer reads: lengths of f_i and, by group, of g_c (0: none) and t_ci (None: any)."""

    variable: int
    factors: Mapping[str, int]
    edges: Mapping[str, int | None]


_NAMED = nn.ModuleDict()


def check_groups(what: str, groups: Any) -> None:
    """Refuse what is no dict by group, and names that modules of a ``torch.nn.ModuleDict`` cannot have."""
    if not isinstance(groups, Mapping):
        raise ValueError(f"Expected {what} as a dict by group (got {kind_of(groups)})")  # noqa: TRY004
    for name in groups:
        if not isinstance(name, str) or not name or "." in name or hasattr(_NAMED, name):
            taken = "other than attributes of torch.nn.ModuleDict such as 'keys'"
            raise ValueError(f"Expected names of groups without '.' and {taken} (got {name!r} in {what})")


def signature(graph: FactorGraph, f: Any, gs: Any, edges: Any) -> tuple[Any, ...]:
    """What a check depends on: calls with the same signature need no second check."""
    return (
        graph.structure.handle,
        None if f is None else (f.shape, f.dtype),
        *((name, g.shape, g.dtype) for name, g in gs.items()),
        *((name, t.shape if isinstance(t, Tensor) else None) for name, t in edges.items()),
        torch.is_autocast_enabled("cpu" if f is None else f.device.type),
    )


def check_kinds(graph: Any, f: Any, gs: Any, edges: Any, order: str = _ORDER) -> None:
    """Refuse arguments of another kind, such as swapped ones; ``order`` says what they are."""
    if not isinstance(graph, FactorGraph):
        raise ValueError(f"Expected a FactorGraph as graph (got {kind_of(graph)}); {order}")  # noqa: TRY004
    if f is not None and not isinstance(f, Tensor):
        how = order if isinstance(f, Mapping | FactorGraph) else "use torch.as_tensor"
        raise ValueError(f"Expected f, the features of the variables, as a tensor (got {kind_of(f)}); {how}")
    for what, value in (("gs", gs), ("edges", edges)):
        if not isinstance(value, Mapping):
            raise ValueError(f"Expected {what} as a dict by group (got {kind_of(value)}); {order}")  # noqa: TRY004
    for name, g in gs.items():
        if not isinstance(g, Tensor):
            raise ValueError(f"Expected gs[{name!r}] as a tensor (got {kind_of(g)}); use torch.as_tensor")  # noqa: TRY004


def check_inputs(
    graph: FactorGraph, f: Tensor | None, gs: Mapping[str, Tensor], edges: Mapping[str, Any], widths: Widths, dtype: Any
) -> None:
    """Refuse groups, shapes and dtypes that a layer of these widths and this dtype cannot read."""
    known = widths.factors
    for what, names in (("graph", graph.groups), ("gs", gs), ("edges", edges)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"Expected groups {list(known)} in {what} (got {unknown})")
    check_features("f", "variables", f, graph.num_variables, widths.variable, dtype)
    for name, group in graph.groups.items():
        g, hint = gs.get(name), ""
        other = edges.get(name)
        if isinstance(other, Tensor) and _fits(other, group.num_factors, known[name]):
            hint = "; gs and edges look swapped"
        check_features(f"gs[{name!r}]", f"factors of group {name!r}", g, group.num_factors, known[name], dtype, hint)
        length = widths.edges[name]
        if length is None:
            continue
        if not isinstance(other, Tensor):
            kind = "none" if other is None else kind_of(other)
            raise ValueError(f"Expected edges[{name!r}], features of length {length} for each edge (got {kind})")  # noqa: TRY004
        flatten_edges(other, graph.incidence(name), length, f"edges[{name!r}]")


def _fits(x: Tensor, count: int, width: int) -> bool:
    return x.dim() in (2, 3) and x.shape[-2] == count and x.shape[-1] == width


def check_features(name: str, what: str, x: Tensor | None, count: int, width: int, dtype: Any, hint: str = "") -> None:
    """Refuse a tensor that is not (B?, count, width) in this dtype; without ``width``, of any."""
    if x is None and not width:
        return
    if x is None or (not _fits(x, count, width) if width else x.dim() not in (2, 3) or x.shape[-2] != count):
        expected = f"{name} of shape ({count}, {width}) or (B, {count}, {width}), the features of the {what}"
        raise ValueError(f"Expected {expected} (got {'none' if x is None else tuple(x.shape)}){hint}")
    if not x.is_floating_point():
        raise ValueError(f"Expected {name} in floating point (got {x.dtype}); use .float()")
    if dtype is not None and x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f"Expected {name} in the layer's {dtype} (got {x.dtype}); use .to({dtype}), or autocast")


def kind_of(x: Any) -> str:
    return f"tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
