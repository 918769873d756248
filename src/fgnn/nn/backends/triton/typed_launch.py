"""Launches of the kernels where many items share each edge matrix.

A plan's tensors are source (E,) and, unless the type of an edge is its place (A > 0), ptr (D + 1,), where the
edges of each node begin in the walk (D + S + 1,), and those of ``Layout.typed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.triton.launch import Operands, Plan, atomic, source_gradient
from fgnn.nn.backends.triton.tile_sizes import Tile, cdiv, splits_of, typed_tile


class _Launch:
    """The arguments that the kernels of one call share, for one choice of tile."""

    def __init__(self, kind: str, x: Operands, plan: Plan) -> None:
        batch, self.sources, self.n = x.src.shape
        self.terms, self.m, _ = x.weight.shape
        self.count = plan.sizes.destinations
        self.by_place = plan.sizes.arity > 0
        self.items = batch * self.count if self.by_place else batch
        self.tile: Tile = typed_tile(kind, self.n, self.m, self.items, x.src.dtype, x.src.device)
        self.tiles = cdiv(self.items, self.tile.lines)
        index: Sequence[Any] = [*plan.tensors, *[None] * 6] if self.by_place else plan.tensors
        self.source, self.ptr, self.node_ptr, self.kind, self.by_kind, self.kind_ptr, self.walk = index
        self.options = plan.options(x, self.tile) | {"BI": self.tile.lines}


def forward(x: Operands, plan: Plan) -> tuple[Tensor, Tensor]:
    """Aggregate towards each destination; also the place of the first maximum (empty for a sum)."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    out, arg = plan.outputs(x)
    if out.numel():
        launch = _Launch("forward", x, plan)
        nodes = 1 if launch.by_place else launch.count
        kernels.typed_forward[(launch.tiles * nodes, cdiv(launch.m, launch.tile.columns))](
            x.dst, x.src, launch.kind, x.weight, launch.source, launch.ptr, out, arg, launch.items, launch.count,
            launch.sources, BY_ITEM=launch.by_place, **launch.options,
        )  # fmt: skip
    return out, arg


def backward(
    grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool], weight_dtype: torch.dtype
) -> list[Tensor]:
    """Gradients at the operands; an empty tensor for those not wanted."""
    grads = x.gradients(wants)
    if not grad.numel() or not plan.tensors[0].numel():
        return [g.zero_() for g in grads]
    if wants[0] or wants[1]:
        run = _place_gradients if plan.sizes.arity else _node_gradients
        grads[1] = run(grad, arg, x, plan, wants, grads)
    if wants[3]:
        grads[3] = _weight_gradient(grad, arg, x, plan).to(weight_dtype)
    return grads


def _node_gradients(
    grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool], grads: list[Tensor]
) -> Tensor:
    """Fill the gradient at dst and return that at src, each node summed over its own list of edges without atomics."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    launch = _Launch("nodes", x, plan)
    tile, first = launch.tile, 0 if wants[0] else launch.count
    nodes = (launch.count if wants[0] else 0) + (launch.sources if wants[1] else 0)
    options = {name: value for name, value in launch.options.items() if name != "A"}
    kernels.typed_nodes[(launch.tiles * nodes, cdiv(launch.n, tile.inner))](
        x.dst, x.src, x.weight, launch.walk, launch.node_ptr, grad, arg, grads[0], grads[1], launch.items,
        launch.count, launch.sources, first, nodes, **options,
        AHEAD=launch.n <= tile.inner and launch.m <= tile.columns,
    )  # fmt: skip
    return grads[1]


def _place_gradients(
    grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool], grads: list[Tensor]
) -> Tensor:
    """The same if the type of an edge is its place."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    launch = _Launch("places", x, plan)
    source = plan.tensors[0]
    by_source = x.source_buffer(source.shape[0], wants[1])
    kernels.places_backward[(launch.tiles, cdiv(launch.n, launch.tile.inner))](
        x.dst, x.src, x.weight, source, grad, arg, grads[0], by_source, launch.items, launch.count, launch.sources,
        source.shape[0], NEED_DST=wants[0], NEED_SRC=wants[1], ATOMIC=atomic(), **launch.options,
    )  # fmt: skip
    return source_gradient(by_source, source, grads[1])


def _weight_gradient(grad: Tensor, arg: Tensor, x: Operands, plan: Plan) -> Tensor:
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    launch = _Launch("weight", x, plan)
    terms, tile = launch.terms, launch.tile
    blocks = cdiv(launch.n, tile.inner) * cdiv(launch.m, tile.columns)
    steps = launch.tiles * (1 if launch.by_place else cdiv(plan.tensors[0].shape[0], terms))
    splits = splits_of(terms * blocks, steps, x.weight.numel(), x.src.device, side_by_side=2)
    partial = x.src.new_empty((splits, *x.weight.shape), dtype=torch.float32)
    kernels.typed_weight[(terms, splits, blocks)](
        x.dst, x.src, launch.source, launch.by_kind, launch.kind_ptr, grad, arg, partial, launch.items, launch.count,
        launch.sources, terms, splits, BY_ITEM=launch.by_place, **launch.options,
    )  # fmt: skip
    return partial[0] if splits == 1 else partial.sum(0)
