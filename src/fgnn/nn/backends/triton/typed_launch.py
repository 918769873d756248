"""Launches of the kernels where many items share each edge matrix.

A plan's tensors are source (E,) and, unless the type of an edge is its place (A > 0), ptr (D + 1,), where the
edges of each node begin in the walk (D + S + 1,), and those of ``Layout.typed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.triton.kernel_launch import launch
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
        self.x, self.plan = x, plan

    def start(self, kernel: Any, grid: tuple[int, ...], args: Sequence[Any], **more: Any) -> None:
        """Launch a kernel with these arguments and its own compile-time options."""
        launch(kernel, grid, args, self.plan.options(self.x, self.tile, BI=self.tile.lines, **more))


def forward(x: Operands, plan: Plan, places: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Aggregate towards each destination; also the place of the first maximum (empty for a sum)."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    out, arg = plan.outputs(x, places)
    if out.numel():
        one = _Launch("forward", x, plan)
        nodes = 1 if one.by_place else one.count
        args = [
            x.dst, x.src, one.kind, x.weight, one.source, one.ptr, out, arg, one.items, one.count, one.sources,
        ]  # fmt: skip
        grid = one.tiles * nodes, cdiv(one.m, one.tile.columns)
        one.start(kernels.typed_forward, grid, args, BY_ITEM=one.by_place)
    return out, arg


def backward(grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool]) -> list[Any]:
    """Gradients at the operands, at W as shares (splits, T, m, n) of a sum; None or empty if they are not wanted."""
    if not grad.numel() or not plan.tensors[0].numel():
        return x.zeros(wants)
    grads = x.gradients(wants)
    if wants[0] or wants[1]:
        run = _place_gradients if plan.sizes.arity else _node_gradients
        grads[1] = run(grad, arg, x, plan, wants, grads)
    return [*grads, _weight_gradient(grad, arg, x, plan) if wants[3] else None]


def _node_gradients(
    grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool], grads: list[Tensor]
) -> Tensor:
    """Fill the gradient at dst and return that at src, each node summed over its own list of edges without atomics."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    one = _Launch("nodes", x, plan)
    tile, first = one.tile, 0 if wants[0] else one.count
    nodes = (one.count if wants[0] else 0) + (one.sources if wants[1] else 0)
    args = [
        x.dst, x.src, x.weight, one.walk, one.node_ptr, grad, arg, grads[0], grads[1], one.items, one.count,
        one.sources, first, nodes,
    ]  # fmt: skip
    ahead = one.n <= tile.inner and one.m <= tile.columns
    grid = one.tiles * nodes, cdiv(one.n, tile.inner)
    one.start(kernels.typed_nodes, grid, args, AHEAD=ahead, by_arity=False)
    return grads[1]


def _place_gradients(
    grad: Tensor, arg: Tensor, x: Operands, plan: Plan, wants: Sequence[bool], grads: list[Tensor]
) -> Tensor:
    """The same if the type of an edge is its place."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    one = _Launch("places", x, plan)
    source = plan.tensors[0]
    by_source = x.source_buffer(source.shape[0], wants[1])
    args = [
        x.dst, x.src, x.weight, source, grad, arg, grads[0], by_source, one.items, one.count, one.sources,
        source.shape[0],
    ]  # fmt: skip
    grid = one.tiles, cdiv(one.n, one.tile.inner)
    one.start(kernels.places_backward, grid, args, NEED_DST=wants[0], NEED_SRC=wants[1], ATOMIC=atomic())
    return source_gradient(by_source, source, grads[1])


def _weight_gradient(grad: Tensor, arg: Tensor, x: Operands, plan: Plan) -> Tensor:
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    one = _Launch("weight", x, plan)
    terms, tile = one.terms, one.tile
    blocks = cdiv(one.n, tile.inner) * cdiv(one.m, tile.columns)
    steps = one.tiles * (1 if one.by_place else cdiv(plan.tensors[0].shape[0], terms))
    splits = splits_of(terms * blocks, steps, x.weight.numel(), x.src.device, side_by_side=2)
    partial = x.src.new_empty((splits, *x.weight.shape), dtype=torch.float32)
    args = [
        x.dst, x.src, one.source, one.by_kind, one.kind_ptr, grad, arg, partial, one.items, one.count, one.sources,
        terms, splits,
    ]  # fmt: skip
    one.start(kernels.typed_weight, (terms, splits, blocks), args, BY_ITEM=one.by_place)
    return partial
