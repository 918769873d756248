"""``aggregate_messages`` by fused kernels, without autograd: choose the kernel family, and run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.choice import EdgeCall
from fgnn.nn.backends.triton import row_launch, typed_launch
from fgnn.nn.backends.triton.launch import Operands, Plan, Sizes, in_turn
from fgnn.nn.backends.triton.layout import layout_of

# From this many samples on, the items of one structure fill a tile.
_ITEMS = 16
# Most entries of Q if it is built once for all samples of a shared structure.
_SHARED_Q = 1 << 25


class Group(NamedTuple):
    """What the messages of a group are computed from; without b, a has a row per edge."""

    a: Tensor
    b: Tensor | None
    phi: Tensor | None
    weight: Tensor
    call: EdgeCall

    @property
    def from_a(self) -> bool:
        """Whether a is at the sources."""
        return self.b is None or self.call.towards == "variable"


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
        family, arity = "rows", layout.arity
        index = [layout.source, layout.edge, layout.table, layout.row_ptr, layout.ptr]
    sizes = Sizes(layout.destinations, arity, layout.longest, layout.width, layout.rows)
    plan = Plan(family, index, sizes, call.relu, call.aggregation.kind == "max")
    return Operands(dst, src, coef, weight), plan


def forward(groups: Sequence[Group], places: torch.dtype | None = None) -> list[tuple[Tensor, Tensor]]:
    """The aggregates (B, D, m) and, for a maximum, the places of the edges that attain it; not differentiable.

    Places are numbered in ``places``, by default in the smallest dtype.
    """
    jobs = [_job(group) for group in groups]
    found: list[tuple[Tensor, Tensor]] = []
    for part in _launches(jobs):
        x, plan = jobs[part.start]
        if plan.family == "rows":
            found.append(row_launch.forward(x, plan, places))
        else:
            found += typed_launch.forward(jobs[part], places)
    return found


def backward(
    groups: Sequence[Group], upstream: Sequence[tuple[Tensor, Tensor]], wants: Sequence[Sequence[bool]],
    shares: Sequence[bool],
) -> list[list[Tensor | None]]:  # fmt: skip
    """Gradients at a, b, φ and W of each group, None for those not wanted, from those at the results.

    With ``shares``, that at W is given by float32 terms of its sum (splits, T, m, n).
    """
    jobs = [_job(group) for group in groups]
    given = [(grad.contiguous(), arg) for grad, arg in upstream]
    needs = [_needs(group, x, want) for group, (x, _), want in zip(groups, jobs, wants, strict=True)]
    found: list[list[Any]] = []
    for part in _launches(jobs):
        (x, plan), (grad, arg) = jobs[part.start], given[part.start]
        if plan.family == "rows":
            found.append(row_launch.backward(grad, arg, x, plan, needs[part.start]))
        else:
            found += typed_launch.backward(jobs[part], given[part], needs[part])
    return [
        _as_given(group, x, grads, want, shared)
        for group, (x, _), grads, want, shared in zip(groups, jobs, found, wants, shares, strict=True)
    ]


def _job(group: Group) -> tuple[Operands, Plan]:
    x, plan = plan_call(*group)
    return Operands(x.dst, x.src, x.coef, x.weight.to(x.src.dtype).contiguous()), plan  # in one precision


def _launches(jobs: Sequence[tuple[Operands, Plan]]) -> Iterator[slice]:
    return in_turn([None if plan.family == "rows" else typed_launch.kind_of(x, plan) for x, plan in jobs])


def _needs(group: Group, x: Operands, wants: Sequence[bool]) -> tuple[bool, ...]:
    """Whether the gradients at the operands of the kernels are needed."""
    built = group.phi is not None and x.coef is None  # Q was built for all edges
    return (
        group.b is not None and wants[1 if group.from_a else 0],
        wants[0 if group.from_a else 1],
        wants[2] and not built,
        wants[3] or (wants[2] and built),
    )


def _as_given(
    group: Group, x: Operands, grads: Sequence[Any], wants: Sequence[bool], shares: bool
) -> list[Tensor | None]:
    """Gradients at the inputs of a group, from those at the operands of the kernels."""
    d_dst, d_src, d_phi, d_weight = grads
    built = group.phi is not None and x.coef is None
    if d_weight is not None and not (shares and not built):
        d_weight = _summed(d_weight)
    d_a, d_b = (d_src, d_dst) if group.from_a else (d_dst, d_src)
    if built and d_weight is not None:
        assert group.phi is not None
        d_q, flat = d_weight.to(x.weight.dtype).flatten(1), group.weight.flatten(1)
        d_phi, d_weight = d_q @ flat.to(d_q.dtype).T, (group.phi.to(d_q.dtype).T @ d_q).view_as(group.weight)
    d_a, d_b = _unexpanded(d_a, group.a, wants[0]), _unexpanded(d_b, group.b, wants[1])
    return [g if wanted else None for g, wanted in zip((d_a, d_b, d_phi, d_weight), wants, strict=True)]


def _unexpanded(grad: Tensor, x: Tensor | None, wanted: bool) -> Tensor:
    """A gradient (B, nodes, n) in the shape of x, which all samples may share."""
    return _summed(grad) if wanted and x is not None and x.dim() == 2 else grad


def _summed(shares: Tensor) -> Tensor:
    """The sum over the first axis; a view of it if it has one entry."""
    return shares[0] if shares.shape[0] == 1 else shares.sum(0)


def _samples(x: Tensor, batch: int) -> Tensor:
    """(B, nodes, n), contiguous."""
    return (x if x.dim() == 3 else x.unsqueeze(0).expand(batch, -1, -1)).contiguous()
