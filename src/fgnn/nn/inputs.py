"""Check the inputs of a layer once per structure and shapes, and name the tensor, the group and both shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGraph, tracing
from fgnn.nn.edge_features import check_integers, edge_types, flatten_edges
from fgnn.nn.shape_text import shape_text

_ORDER = "the arguments are (graph, f, gs, edges)"


@dataclass(frozen=True)
class Widths:
    """The features that a layer reads: lengths of f_i and, by group, of g_c (0: none) and t_ci (0: none, None: any).

    ``types`` are the numbers of edge types, by group, where those choose Q.
    """

    variable: int
    factors: Mapping[str, int]
    edges: Mapping[str, int | None]
    types: Mapping[str, int] = field(default_factory=dict)


_NAMED = nn.ModuleDict()


def check_groups(what: str, groups: Any) -> None:
    """Refuse what is no dict by group, and names that modules of a ``torch.nn.ModuleDict`` cannot have."""
    if not isinstance(groups, Mapping):
        raise ValueError(f"Expected {what} as a dict by group (got {kind_of(groups)})")  # noqa: TRY004
    for name in groups:
        if not isinstance(name, str) or not name or "." in name or hasattr(_NAMED, name):
            taken = "other than attributes of torch.nn.ModuleDict such as 'keys'"
            raise ValueError(f"Expected names of groups without '.' and {taken} (got {name!r} in {what})")


def check_sizes(variable_in: Any, factor_in: Any, edge_in: Any, hidden: Any = (), **widths: Any) -> None:
    """Refuse lengths that are no integers or negative, widths below 1, and edges of groups without factors."""
    _check_length("variable_in", variable_in, 0)
    for what, groups in (("factor_in", factor_in), ("edge_in", edge_in)):
        check_groups(what, groups)
        for name, length in groups.items():
            _check_length(f"{what}[{name!r}]", length, 0)
    unknown = sorted(set(edge_in) - set(factor_in))
    if unknown:
        raise ValueError(f"Expected edge features for the groups {list(factor_in)} only (got {unknown})")
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise ValueError(f"Expected hidden as a list of widths (got {kind_of(hidden)})")  # noqa: TRY004
    for what, width in (*widths.items(), *(("every width in hidden", d) for d in hidden)):
        if width is not None:
            _check_length(what, width, 1)


def _check_length(what: str, length: Any, least: int) -> None:
    if not isinstance(length, Integral) or length < least:
        got = repr(length) if isinstance(length, int | float | str) else kind_of(length)
        raise ValueError(f"Expected {what} as an integer of at least {least} (got {got})")


def signature(graph: FactorGraph, f: Any, gs: Any, edges: Any) -> tuple[Any, ...]:
    """What a check depends on: calls with the same signature need no second check."""
    return (
        graph.structure.handle,
        None if f is None else (f.shape, f.dtype, f.device),
        *((name, g.shape, g.dtype, g.device) for name, g in gs.items()),
        *((name, _kind_of_edges(t)) for name, t in edges.items()),
        _autocast("cpu" if f is None else f.device.type),
    )


def _kind_of_edges(t: Any) -> tuple[Any, ...] | None:
    if isinstance(t, Tensor):
        return t.shape, t.dtype, t.device
    return (t.num_types, t.num_edges) if isinstance(t, EdgeTypes) else None


def _autocast(kind: str) -> bool:
    return kind != "meta" and torch.is_autocast_enabled(kind)  # torch refuses to say for devices without autocast


def check_kinds(graph: Any, f: Any, gs: Any, edges: Any, order: str = _ORDER) -> None:
    """Refuse arguments of another kind, such as swapped ones; ``order`` says what they are."""
    if not isinstance(graph, FactorGraph):
        how = "call it with *data.inputs" if order is _ORDER and hasattr(graph, "inputs") else order
        raise ValueError(f"Expected a FactorGraph as graph (got {kind_of(graph)}); {how}")  # noqa: TRY004
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
    _check_devices(graph, f, gs, edges)
    samples = {} if f is None or f.dim() < 3 else {"f": f.shape[0]}
    check_features("f", "variables", f, graph.num_variables, widths.variable, dtype)
    for name, group in graph.groups.items():
        g, hint = gs.get(name), ""
        other = edges.get(name)
        if isinstance(other, Tensor) and _fits(other, group.num_factors, known[name]):
            hint = "; gs and edges look swapped"
        what = f"gs[{name!r}]"
        check_features(what, f"factors of group {name!r}", g, group.num_factors, known[name], dtype, hint)
        samples |= {} if g is None or g.dim() < 3 else {what: g.shape[0]}
        length, what = widths.edges[name], f"edges[{name!r}]"
        if name in widths.types:
            _check_types(what, other, graph, name, widths.types[name])
        if length == 0 and other is not None:
            raise ValueError(
                f"Expected no edge features for group {name!r}, whose edge_in is 0 (got {what}, {kind_of(other)})"
            )
        if not length:
            continue
        if not isinstance(other, Tensor):
            kind = "none" if other is None else kind_of(other)
            raise ValueError(f"Expected {what}, features of length {length} for each edge (got {kind})")  # noqa: TRY004
        flat, _ = flatten_edges(other, graph.incidence(name), length, what)
        check_dtype(what, other, dtype)
        samples |= {} if flat.dim() < 3 else {what: flat.shape[0]}
    check_samples(samples)


def check_samples(samples: Mapping[str, int]) -> None:
    """Refuse different numbers of samples, by tensor."""
    counts = list(samples.values())
    if [count for count in counts if count != counts[0]]:  # no set: exported code has symbols
        got = ", ".join(f"{name} of {count}" for name, count in samples.items())
        raise ValueError(f"Expected the same number of samples in all features (got {got})")


def _check_devices(graph: FactorGraph, f: Tensor | None, gs: Mapping[str, Tensor], edges: Mapping[str, Any]) -> None:
    """Refuse features on another device than the graph, which ``Module.to`` does not move."""
    named = [("f", f), *((f"gs[{k!r}]", g) for k, g in gs.items()), *((f"edges[{k!r}]", t) for k, t in edges.items())]
    for name, x in named:
        if graph.groups and isinstance(x, Tensor) and x.device != graph.device:
            how = "graph.to(device), or data.to(device), moves it"
            raise ValueError(f"Expected {name} on {graph.device}, where the graph is (got {x.device}); {how}")
    if graph.groups and graph.device.type == "meta":
        raise ValueError("Expected a graph on a device that holds its scopes (got meta)")


def _check_types(what: str, t: Any, graph: FactorGraph, group: str, num_types: int) -> None:
    if not (t is None or isinstance(t, Tensor | EdgeTypes)):
        raise ValueError(f"Expected {what} as a tensor or EdgeTypes (got {kind_of(t)})")
    if tracing():  # the values are not known
        if isinstance(t, Tensor):
            flatten_edges(t, graph.incidence(group), num_types if t.is_floating_point() else None, what)
        return
    if isinstance(t, Tensor) and t.is_cpu and not t.is_floating_point():
        check_integers(t, graph.incidence(group), num_types, what)
    edge_types(t, graph.incidence(group), num_types, what)


def _fits(x: Tensor, count: int, width: int) -> bool:
    return x.dim() in (2, 3) and x.shape[-2] == count and x.shape[-1] == width


def check_features(name: str, what: str, x: Tensor | None, count: int, width: int, dtype: Any, hint: str = "") -> None:
    """Refuse a tensor that is not (B?, count, width) in this dtype; without ``width``, of any."""
    if x is None and not width:
        return
    if x is None or (not _fits(x, count, width) if width else x.dim() not in (2, 3) or x.shape[-2] != count):
        own = f"{int(count)}, {int(width)}"  # numbers, where code is traced with symbols
        expected = f"{name} of shape ({own}) or (B, {own}), the features of the {what}"
        raise ValueError(f"Expected {expected} (got {shape_text(x)}){hint}")
    check_dtype(name, x, dtype)


def check_dtype(name: str, x: Tensor, dtype: Any) -> None:
    """Refuse numbers of another dtype than the layer's, unless autocast converts them."""
    if not x.is_floating_point():
        raise ValueError(f"Expected {name} in floating point (got {x.dtype}); use .float()")
    if dtype is not None and x.dtype != dtype and not _autocast(x.device.type):
        raise ValueError(f"Expected {name} in the layer's {dtype} (got {x.dtype}); use .to({dtype}), or autocast")


def kind_of(x: Any) -> str:
    return f"tensor of shape {shape_text(x)}" if isinstance(x, Tensor) else type(x).__name__
