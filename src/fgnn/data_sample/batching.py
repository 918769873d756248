"""Batches of samples: joined into one disconnected graph, or stacked on one structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate as default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from fgnn.data_sample.edge_forms import same_edges, serves_all_factors
from fgnn.data_sample.empty_groups import with_groups
from fgnn.data_sample.sample import Data
from fgnn.data_sample.targets import join_targets, target_rows
from fgnn.graph import EdgeTypes, FactorGraph
from fgnn.nn.edge_features import EdgeFeatures


@overload
def collate(samples: Sequence[Data], *, stack: bool = ..., groups: Data | None = ...) -> Data: ...


@overload
def collate(samples: Sequence[Any], *, stack: bool = ..., groups: Data | None = ...) -> Any: ...


def collate(samples: Sequence[Any], *, stack: bool = False, groups: Data | None = None) -> Any:
    """One batch of several samples, for ``torch.utils.data.DataLoader(dataset, collate_fn=fgnn.collate)``.

    Samples may also be tuples and dicts of ``Data``, tensors and numbers, which are collated part by part as torch
    does; ``collate`` is torch's default for the ``Data`` among them.

    Structures may differ: graphs are joined into one disconnected graph, and features are concatenated, so that f is
    (ΣN, d). ``fgnn.nn.GraphPool`` reduces variables to samples; ``batch.graph.batch_index()`` says which sample each
    variable belongs to.

    Args:
        samples: The samples; a batch among them counts as its samples.
        stack: For samples of one structure, which they then share: f is (B, N, d), and layers compute what depends on
            the structure once instead of B times.
        groups: A sample or a batch that has all groups. Those that no sample here has are added without factors, so
            that every batch has the same groups and uses the same parameters.
    """
    _check_arguments(samples, groups)
    how: dict[Any, Any] = {**default_collate_fn_map, Data: partial(_collate, stack=stack, groups=groups)}
    return default_collate(samples, collate_fn_map=how)


def _check_arguments(samples: Any, groups: Any) -> None:
    if isinstance(samples, Mapping) or not hasattr(samples, "__getitem__"):
        raise ValueError(f"Expected a list of samples to collate (got {type(samples).__name__})")
    if not len(samples):
        raise ValueError("Expected at least one sample to collate (got none)")
    if groups is not None and not isinstance(groups, Data):
        kind = type(groups).__name__
        raise ValueError(f"Expected a sample or a batch (fgnn.Data) with all groups as groups (got {kind})")


def _collate(
    given: Sequence[Data], *, stack: bool = False, groups: Data | None = None, collate_fn_map: Any = None
) -> Data:
    for k, sample in enumerate(given):
        if not isinstance(sample, Data):
            raise ValueError(f"Expected fgnn.Data samples (got {type(sample).__name__} as sample {k})")  # noqa: TRY004
    if stack:
        batch = _stacked([one for sample in given for one in (sample.unbatch() if sample.stacked else [sample])])
    else:
        batch = _joined([one for sample in given for one in sample.unbatch()])
    return batch if groups is None else with_groups(batch, groups)


def _refuse_graphs(given: Sequence[FactorGraph], *, collate_fn_map: Any = None) -> Any:
    raise ValueError("Expected fgnn.Data, tensors and numbers in samples (got FactorGraph); give fgnn.Data(graph)")


default_collate_fn_map |= {Data: _collate, FactorGraph: _refuse_graphs}


def _joined(samples: Sequence[Data]) -> Data:
    graph = FactorGraph.concat([sample.graph for sample in samples])
    targets = [sample.y for sample in samples]
    return Data(
        graph,
        _cat("f", [sample.f for sample in samples]),
        _cat_named("gs", samples, [dict(sample.gs) for sample in samples], graph),
        _cat_edges(samples, graph),
        join_targets(targets, _cat),
        target_rows(targets),
    )


def _stacked(samples: Sequence[Data]) -> Data:
    first = samples[0]
    for k, sample in enumerate(samples):
        own, common = sample.graph.structure, first.graph.structure
        if own is not common and own.key != common.key:
            raise ValueError(f"Expected samples of one structure to stack (got {sample.graph} as sample {k})")
        if set(sample.gs) != set(first.gs) or set(sample.edges) != set(first.edges):
            raise ValueError(f"Expected features of the same groups in all samples (got {sample} as sample {k})")

    f = _stack("f", [sample.f for sample in samples])
    gs = {name: _stack(f"gs[{name!r}]", [sample.gs[name] for sample in samples]) for name in first.gs}
    y = join_targets([sample.y for sample in samples], _stack)
    if f is None and not gs and not first.edges:
        got = f"none in {len(samples)} samples"
        raise ValueError(f"Expected features f, gs or edges in samples to stack (got {got}); join them, stack=False")
    shared = {name for name, t in first.edges.items() if all(same_edges(sample.edges[name], t) for sample in samples)}
    if f is None and not gs and len(shared) == len(first.edges):
        shared = set()  # features alone tell how many samples there are
    edges: dict[str, EdgeFeatures] = {}
    for name, t in first.edges.items():
        rows = None if name in shared else [sample.edge_rows()[name] for sample in samples]
        edges[name] = t if rows is None else _stack(f"edges[{name!r}]", rows)
    y_rows = first.y_rows if all(sample.y_rows == first.y_rows for sample in samples) else None
    return Data(first.graph, f, gs, edges, y, y_rows)


def _stack(what: str, parts: Sequence[Tensor | None]) -> Any:
    _check_alike(what, dict(enumerate(parts)), by_row=False)
    return None if parts[0] is None else torch.stack([x for x in parts if x is not None])


def _cat(what: str, parts: Sequence[Tensor | None] | dict[int, Tensor | None]) -> Any:
    """Concatenate the tensors of samples, numbered from 0 if not by their keys; numbers become a vector."""
    numbered = parts if isinstance(parts, dict) else dict(enumerate(parts))
    _check_alike(what, numbered, by_row=True)
    tensors = [x for x in numbered.values() if x is not None]
    return (torch.cat(tensors) if tensors[0].dim() else torch.stack(tensors)) if tensors else None


def _check_alike(what: str, parts: dict[int, Tensor | None], *, by_row: bool) -> None:
    """Refuse tensors of different dtypes, devices or shapes; ``by_row``, the number of rows may differ."""

    def shape(x: Tensor | None) -> str:
        if x is None or not x.dim():
            return "none" if x is None else "a number"
        return f"(·{''.join(f', {size}' for size in x.shape[1:])})" if by_row else str(tuple(x.shape))

    def kind(x: Tensor | None) -> Any:
        return None if x is None else (x.dim(), x.shape[1:] if by_row else x.shape, x.dtype, x.device)

    begin = next(iter(parts))
    first = parts[begin]
    for k, x in parts.items():
        if kind(x) == kind(first):
            continue
        one, other = shape(first), shape(x)
        if one == other and x is not None and first is not None:
            one, other = (f"{one} of {y.dtype} on {y.device}" for y in (first, x))
        raise ValueError(f"Expected data.{what} {one} in all samples, as in sample {begin} (got {other} in sample {k})")


def _cat_named(
    what: str, samples: Sequence[Data], values: list[dict[str, Tensor]], graph: FactorGraph
) -> dict[str, Any]:
    """Concatenate by group; samples without factors of a group need no features of it."""
    joined = {}
    for name in graph.groups:
        if not any(name in value for value in values):
            continue
        counts = (sample.graph.groups[name].num_factors if name in sample.graph.groups else 0 for sample in samples)
        needed = enumerate(zip(values, counts, strict=True))
        parts = {k: value.get(name) for k, (value, count) in needed if count or name in value}
        joined[name] = _cat(f"{what}[{name!r}]", parts)
    return joined


def _cat_edges(samples: Sequence[Data], graph: FactorGraph) -> dict[str, EdgeFeatures]:
    rows = _cat_named("edges", samples, [sample.edge_rows() for sample in samples], graph)
    edges: dict[str, EdgeFeatures] = {}
    for name, joined in rows.items():
        given = [sample.edges[name] for sample in samples if name in sample.edges]
        first, group = given[0], graph.groups[name]
        if isinstance(first, EdgeTypes):
            kinds = {t.num_types if isinstance(t, EdgeTypes) else None for t in given}
            if len(kinds) > 1:
                raise ValueError(
                    f"Expected as many edge types of group {name!r} in all samples (got {sorted(map(str, kinds))})"
                )
            edges[name] = EdgeTypes.known(joined, first.num_types, joined.shape[0])
        elif serves_all_factors(first, group) and all(same_edges(t, first) for t in given):
            edges[name] = first
        else:
            edges[name] = joined
    return edges
