"""``aggregate_messages`` by fused kernels: choose the kernel, and lay out its inputs."""

from __future__ import annotations

from torch import Tensor

from fgnn.nn.backends.edge_call import EdgeCall
from fgnn.nn.backends.triton.layout import Layout, layout_of

# From this many samples on, the items of one structure fill a tile.
_ITEMS = 16
# Most entries of Q, built once for all samples of a shared structure.
_SHARED_Q = 1 << 25


def aggregate_triton(a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall) -> Tensor:
    """See :func:`fgnn.nn.functional.aggregate_messages`."""
    from fgnn.nn.backends.triton.edge_row_op import rows

    batch = call.batch or 1
    layout = layout_of(call.incidence, call.towards, per_edge=b is None)
    dst, src = (None, a) if b is None else (a, b) if call.towards == "factor" else (b, a)
    dst = None if dst is None else _samples(dst, batch)
    src = _samples(src, batch)
    maximum = call.aggregation.kind == "max"
    known = _typed_case(phi, call, layout, weight, batch)
    if known is not None:
        out = _typed(dst, src, phi, weight, layout, known, call)
    else:
        coef = call.types.index if phi is None else phi.to(src.dtype).contiguous()  # type: ignore[union-attr]
        out = rows(
            dst, src, coef, weight, layout.source, layout.edge, layout.table, layout.row_ptr,
            [layout.destinations, layout.arity, layout.width, layout.rows, layout.longest], call.relu, maximum,
        )  # fmt: skip
    return out.squeeze(0) if call.batch is None else out


def _samples(x: Tensor, batch: int) -> Tensor:
    """(B, nodes, n), contiguous."""
    return (x if x.dim() == 3 else x.unsqueeze(0).expand(batch, -1, -1)).contiguous()


def _typed_case(phi: Tensor | None, call: EdgeCall, layout: Layout, weight: Tensor, batch: int) -> str | None:
    """Whether many items meet each edge matrix: "types", "places" or "shared" φ; None where rows fit better."""
    types = call.types
    if types is not None:
        if batch >= _ITEMS:
            return "types"
        by_place = types is call.incidence.positions and call.towards == "factor" and call.incidence.arity is not None
        return "places" if by_place and layout.destinations >= _ITEMS else None
    entries = layout.edges * weight.shape[1] * weight.shape[2]
    return "shared" if phi is not None and phi.dim() == 2 and batch >= _ITEMS and entries <= _SHARED_Q else None


def _typed(
    dst: Tensor | None, src: Tensor, phi: Tensor | None, weight: Tensor, layout: Layout, case: str, call: EdgeCall
) -> Tensor:
    from fgnn.nn.backends.triton.typed_edge_op import typed

    lists = [layout.source]
    kinds: list[Tensor] = []
    arity = layout.longest if case == "places" else 0
    if case != "places":
        lists += [layout.ptr, layout.incident[1]]
        kinds = list(layout.one_each if call.types is None else layout.typed(call.types))
    if phi is not None:
        # Q once per structure: its edges, not edges times samples
        terms, m, n = weight.shape
        weight = (phi.to(src.dtype) @ weight.to(src.dtype).reshape(terms, m * n)).view(-1, m, n)
    sizes = [layout.destinations, arity, layout.longest]
    return typed(dst, src, weight, kinds, lists, sizes, call.relu, call.aggregation.kind == "max")
