"""``aggregate_messages`` by fused kernels: which one fits, and the inputs as it reads them."""

from __future__ import annotations

from torch import Tensor

from fgnn.graph import EdgeTypes, Incidence, Side
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.triton.layout import Layout, layout_of

# From this many samples on, items of one structure fill a tile.
_ITEMS = 16
# Entries of Q that one shared structure may take, made once for all samples.
_SHARED_Q = 1 << 25


def aggregate_fused(
    a: Tensor,
    b: Tensor | None,
    incidence: Incidence,
    coefficients: Tensor | EdgeTypes,
    weight: Tensor,
    towards: Side,
    activation: str,
    aggregation: Aggregation,
) -> Tensor:
    """See :func:`fgnn.nn.functional.aggregate_messages`."""
    from fgnn.nn.backends.triton.edge_row_op import rows

    phi = coefficients if isinstance(coefficients, Tensor) else None
    sizes = [t.shape[0] for t in (a, b, phi) if t is not None and t.dim() == 3]
    if any(size != sizes[0] for size in sizes):
        raise ValueError(f"Expected the same number of samples in all features (got {sizes})")
    batch = sizes[0] if sizes else 1
    layout = layout_of(incidence, towards, per_edge=b is None)
    dst, src = (None, a) if b is None else (a, b) if towards == "factor" else (b, a)
    dst = None if dst is None else _samples(dst, batch)
    src = _samples(src, batch)
    relu, maximum = activation == "relu", aggregation.kind == "max"
    known = _typed_case(coefficients, incidence, towards, layout, weight, batch)
    if known is not None:
        out = _typed(dst, src, coefficients, weight, layout, known, relu, maximum)
    else:
        coef = coefficients.index if isinstance(coefficients, EdgeTypes) else coefficients.to(src.dtype).contiguous()
        out = rows(
            dst, src, coef, weight, layout.source, layout.edge, layout.table, layout.row_ptr,
            [layout.destinations, layout.arity, layout.width, layout.rows, layout.longest], relu, maximum,
        )  # fmt: skip
    return out if sizes else out.squeeze(0)


def _samples(x: Tensor, batch: int) -> Tensor:
    """(B, nodes, n), contiguous."""
    return (x if x.dim() == 3 else x.unsqueeze(0).expand(batch, -1, -1)).contiguous()


def _typed_case(
    coefficients: Tensor | EdgeTypes, incidence: Incidence, towards: Side, layout: Layout, weight: Tensor, batch: int
) -> str | None:
    """Whether many items meet each edge matrix: "types", "places" or "shared" φ; None where rows fit better."""
    if isinstance(coefficients, EdgeTypes):
        if batch >= _ITEMS:
            return "types"
        by_place = coefficients is incidence.positions and towards == "factor" and incidence.arity is not None
        return "places" if by_place and layout.destinations >= _ITEMS else None
    entries = layout.edges * weight.shape[1] * weight.shape[2]
    return "shared" if coefficients.dim() == 2 and batch >= _ITEMS and entries <= _SHARED_Q else None


def _typed(
    dst: Tensor | None,
    src: Tensor,
    coefficients: Tensor | EdgeTypes,
    weight: Tensor,
    layout: Layout,
    case: str,
    relu: bool,
    maximum: bool,
) -> Tensor:
    from fgnn.nn.backends.triton.typed_edge_op import typed

    lists = [layout.source]
    kinds: list[Tensor] = []
    arity = layout.longest if case == "places" else 0
    if case != "places":
        lists += [layout.ptr, layout.incident[1]]
        kinds = list(layout.typed(coefficients) if isinstance(coefficients, EdgeTypes) else layout.one_each)
    if isinstance(coefficients, Tensor):
        # Q once per structure: its edges, not edges times samples
        terms, m, n = weight.shape
        weight = (coefficients.to(src.dtype) @ weight.to(src.dtype).reshape(terms, m * n)).view(-1, m, n)
    sizes = [layout.destinations, arity, layout.longest]
    return typed(dst, src, weight, kinds, lists, sizes, relu, maximum)
