"""``aggregate_messages`` by fused kernels, without autograd: choose the kernel family, and run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.triton import row_launch, typed_launch
from fgnn.nn.backends.triton.launch import Operands, Plan, Sizes
from fgnn.nn.backends.triton.layout import layout_of

_FAMILIES: dict[str, Any] = {"rows": row_launch, "typed": typed_launch}
# From this many samples on, the items of one structure fill a tile.
_ITEMS = 16
# Most entries of Q if it is built once for all samples of a shared structure.
_SHARED_Q = 1 << 25


def plan_call(a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall) -> tuple[Operands, Plan]:
    """The operands of the kernels that serve a call, and their plan."""
    batch = call.batch or 1
    layout = layout_of(call.incidence, call.towards, per_edge=b is None)
    dst, src = (None, a) if b is None else (a, b) if call.towards == "factor" else (b, a)
    dst = None if dst is None else _samples(dst, batch)
    src = _samples(src, batch)
    many, types, incidence = batch >= _ITEMS, call.types, call.incidence
    uniform = call.towards == "factor" and incidence.arity is not None and layout.destinations >= _ITEMS
    if not many and types is not None and uniform and types is incidence.positions:
        # the matrix depends on the place alone, and many factors share it
        family, coef, arity, index = "typed", None, layout.longest, [layout.source]
    elif many and phi is None:
        assert types is not None
        family, coef, arity, index = "typed", None, 0, [*layout.node_lists, *layout.typed(types)]
    elif many and phi is not None and phi.dim() == 2 and layout.edges * weight.shape[1] * weight.shape[2] <= _SHARED_Q:
        # Q once per structure: for its edges, not for edges times samples
        weight = (phi.to(src.dtype) @ weight.to(src.dtype).flatten(1)).view(-1, *weight.shape[1:])
        family, coef, arity, index = "typed", None, 0, [*layout.node_lists, *layout.one_each]
    else:
        coef = phi.to(src.dtype).contiguous() if phi is not None else types.index  # type: ignore[union-attr]
        family, arity, index = "rows", layout.arity, [layout.source, layout.edge, layout.table, layout.row_ptr]
    sizes = Sizes(layout.destinations, arity, layout.longest, layout.width, layout.rows)
    plan = Plan(family, index, sizes, call.relu, call.aggregation.kind == "max")
    return Operands(dst, src, coef, weight), plan


def forward(
    a: Tensor, b: Tensor | None, phi: Tensor | None, weight: Tensor, call: EdgeCall, places: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The aggregate (B, D, m) and, for a maximum, the place of the edge that attains it; not differentiable.

    Places are numbered in ``places``, by default in the smallest dtype.
    """
    x, plan = plan_call(a, b, phi, weight, call)
    out: tuple[Tensor, Tensor] = _FAMILIES[plan.family].forward(_rounded(x), plan, places)
    return out


def backward(
    grad: Tensor, arg: Tensor, inputs: tuple[Tensor, Tensor | None, Tensor | None, Tensor], call: EdgeCall,
    wants: Sequence[bool], shares: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Gradients at the inputs of :func:`forward`, None for those not wanted.

    With ``shares``, that at W is given by float32 terms of its sum (splits, T, m, n).
    """
    a, b, phi, weight = inputs
    x, plan = plan_call(a, b, phi, weight, call)
    joined = phi is not None and x.coef is None  # Q was built for all edges
    src_is_a = b is None or call.towards == "variable"
    needs = (
        b is not None and wants[1 if src_is_a else 0],
        wants[0 if src_is_a else 1],
        wants[2] and not joined,
        wants[3] or (wants[2] and joined),
    )
    run = _FAMILIES[plan.family].backward
    d_dst, d_src, d_phi, d_weight = run(grad.contiguous(), arg, _rounded(x), plan, needs)
    if needs[3] and not (shares and not joined):
        d_weight = _summed(d_weight)
    d_a, d_b = (d_src, d_dst) if src_is_a else (d_dst, d_src)
    if joined:
        assert phi is not None
        d_q, flat = d_weight.to(x.weight.dtype).flatten(1), weight.flatten(1)
        d_phi, d_weight = d_q @ flat.to(d_q.dtype).T, (phi.to(d_q.dtype).T @ d_q).view_as(weight)
    return _wanted([_unexpanded(d_a, a, wants[0]), _unexpanded(d_b, b, wants[1]), d_phi, d_weight], wants)


def _unexpanded(grad: Tensor, x: Tensor | None, wanted: bool) -> Tensor:
    """A gradient (B, nodes, n) in the shape of x, which all samples may share."""
    return _summed(grad) if wanted and x is not None and x.dim() == 2 else grad


def _summed(shares: Tensor) -> Tensor:
    """The sum over the first axis; a view of it if it has one entry."""
    return shares[0] if shares.shape[0] == 1 else shares.sum(0)


def _samples(x: Tensor, batch: int) -> Tensor:
    """(B, nodes, n), contiguous."""
    return (x if x.dim() == 3 else x.unsqueeze(0).expand(batch, -1, -1)).contiguous()


def _rounded(x: Operands) -> Operands:
    """W in the precision of the features."""
    return Operands(x.dst, x.src, x.coef, x.weight.to(x.src.dtype).contiguous())


def _wanted(grads: Sequence[Tensor], wants: Sequence[bool]) -> list[Tensor | None]:
    return [g if wanted else None for g, wanted in zip(grads, wants, strict=True)]
