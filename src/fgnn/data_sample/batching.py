"""Batches of samples: joined into one disconnected graph, or stacked on one structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from fgnn.data_sample.edge_forms import same_edges, serves_all_factors
from fgnn.data_sample.sample import Data
from fgnn.data_sample.targets import join_targets
from fgnn.graph import EdgeTypes, FactorGraph
from fgnn.nn.edge_features import EdgeFeatures


def collate(samples: Sequence[Data], *, stack: bool = False) -> Data:
    """One batch of several samples, for ``torch.utils.data.DataLoader(dataset, collate_fn=fgnn.collate)``.

    It is torch's default for samples, alone and as parts of tuples and dicts.

    Structures may differ: graphs are joined into one disconnected graph, and features are concatenated, so that f is
    (ΣN, d). ``fgnn.nn.GraphPool`` reduces variables to samples; ``batch.graph.batch_index()`` says which sample each
    variable belongs to.

    Args:
        samples: The samples; a batch among them counts as its samples.
        stack: For samples of one structure, which they then share: f is (B, N, d), and layers compute what depends on
            the structure once instead of B times.
    """
    for k, sample in enumerate(samples):
        if not isinstance(sample, Data):
            raise ValueError(f"Expected fgnn.Data samples (got {type(sample).__name__} as sample {k})")  # noqa: TRY004
    if not samples:
        raise ValueError("Expected at least one sample to collate (got none)")
    if stack:
        return _stacked(samples)
    graph = FactorGraph.concat([sample.graph for sample in samples])
    return Data(
        graph,
        _cat("f", [sample.f for sample in samples]),
        _cat_named("gs", samples, [dict(sample.gs) for sample in samples], graph),
        _cat_edges(samples, graph),
        join_targets([sample.y for sample in samples], _cat_targets),
    )


def _by_default(samples: Sequence[Data], *, collate_fn_map: Any = None) -> Data:
    return collate(samples)


default_collate_fn_map[Data] = _by_default


def _stacked(samples: Sequence[Data]) -> Data:
    first = samples[0]
    for k, sample in enumerate(samples):
        own, common = sample.graph.structure, first.graph.structure
        if own is not common and own.key != common.key:
            raise ValueError(f"Expected samples of one structure to stack (got {sample.graph} as sample {k})")
        if set(sample.gs) != set(first.gs) or set(sample.edges) != set(first.edges):
            raise ValueError(f"Expected features of the same groups in all samples (got {sample} as sample {k})")

    edges: dict[str, EdgeFeatures] = {}
    for name, t in first.edges.items():
        same = all(same_edges(sample.edges[name], t) for sample in samples)
        edges[name] = t if same else _stack(f"edges[{name!r}]", [sample.edge_rows()[name] for sample in samples])
    return Data(
        first.graph,
        _stack("f", [sample.f for sample in samples]),
        {name: _stack(f"gs[{name!r}]", [sample.gs[name] for sample in samples]) for name in first.gs},
        edges,
        join_targets([sample.y for sample in samples], _stack),
    )


def _stack(what: str, parts: Sequence[Tensor | None]) -> Any:
    shapes = [None if x is None else tuple(x.shape) for x in parts]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(f"Expected data.{what} {shapes[0]} in all samples (got {shape} in sample {k})")
    return None if parts[0] is None else torch.stack([x for x in parts if x is not None])


def _cat(what: str, parts: Sequence[Tensor | None]) -> Tensor | None:
    first = parts[0]
    for k, part in enumerate(parts):
        one, other = (None if x is None else tuple(x.shape[1:]) for x in (first, part))
        if one != other:
            raise ValueError(
                f"Expected data.{what} (·, {_tail(one)}) in all samples (got {_tail(other)} in sample {k})"
            )
    return None if first is None else torch.cat([x for x in parts if x is not None])


def _tail(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else ", ".join(map(str, shape)) or "no width"


def _cat_named(
    what: str, samples: Sequence[Data], values: list[dict[str, Tensor]], graph: FactorGraph
) -> dict[str, Any]:
    """Concatenate by group; samples without factors of a group need no features of it."""
    joined = {}
    for name in graph.groups:
        if not any(name in value for value in values):
            continue
        counts = (sample.graph.groups[name].num_factors if name in sample.graph.groups else 0 for sample in samples)
        parts = [value.get(name) for value, count in zip(values, counts, strict=True) if count or name in value]
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


def _cat_targets(what: str, targets: Sequence[Tensor | None]) -> Tensor | None:
    scalars = [y for y in targets if y is not None and y.dim() == 0]
    if len(scalars) == len(targets):
        return torch.stack(scalars)
    return _cat(what, [y if y is None or y.dim() else y.reshape(1) for y in targets])
