"""``aggregate_messages`` by fused kernels: choose the kernel family and lay out its inputs."""

from __future__ import annotations

from torch import Tensor

from fgnn.nn.backends.edge_call import EdgeCall
from fgnn.nn.backends.triton.edge_op import aggregate_edges
from fgnn.nn.backends.triton.launch import Operands, Plan, Sizes
from fgnn.nn.backends.triton.layout import Layout, layout_of

# From this many samples on, the items of one structure fill a tile.
_ITEMS = 16
# Most entries of Q if it is built once for all samples of a shared structure.
_SHARED_Q = 1 << 25


def aggregate_triton(a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall) -> Tensor:
    """See :func:`fgnn.nn.functional.aggregate_messages`."""
    batch = call.batch or 1
    layout = layout_of(call.incidence, call.towards, per_edge=b is None)
    dst, src = (None, a) if b is None else (a, b) if call.towards == "factor" else (b, a)
    dst = None if dst is None else _samples(dst, batch)
    src = _samples(src, batch)
    many = batch >= _ITEMS
    if _by_place(call, layout) and not many:
        family, coef, arity, index = "typed", None, layout.longest, [layout.source]
    elif many and phi is None:
        assert call.types is not None
        family, coef, arity, index = "typed", None, 0, [*layout.node_lists, *layout.typed(call.types)]
    elif many and phi is not None and phi.dim() == 2 and _entries(layout, weight) <= _SHARED_Q:
        # Q once per structure: for its edges, not for edges times samples
        weight = (phi.to(src.dtype) @ weight.to(src.dtype).flatten(1)).view(-1, *weight.shape[1:])
        family, coef, arity, index = "typed", None, 0, [*layout.node_lists, *layout.one_each]
    else:
        coef = phi.to(src.dtype).contiguous() if phi is not None else call.types.index  # type: ignore[union-attr]
        family, arity, index = "rows", layout.arity, [layout.source, layout.edge, layout.table, layout.row_ptr]
    sizes = Sizes(layout.destinations, arity, layout.longest, layout.width, layout.rows)
    plan = Plan(family, index, sizes, call.relu, call.aggregation.kind == "max")
    out = aggregate_edges(Operands(dst, src, coef, weight), plan)
    return out.squeeze(0) if call.batch is None else out


def _samples(x: Tensor, batch: int) -> Tensor:
    """(B, nodes, n), contiguous."""
    return (x if x.dim() == 3 else x.unsqueeze(0).expand(batch, -1, -1)).contiguous()


def _entries(layout: Layout, weight: Tensor) -> int:
    """Of one matrix per edge."""
    return layout.edges * weight.shape[1] * weight.shape[2]


def _by_place(call: EdgeCall, layout: Layout) -> bool:
    """Whether the matrix depends on the place alone, and many factors share it."""
    types, incidence = call.types, call.incidence
    if types is None or call.towards != "factor" or incidence.arity is None or layout.destinations < _ITEMS:
        return False
    return types is incidence.positions
