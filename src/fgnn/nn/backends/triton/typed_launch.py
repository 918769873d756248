"""Launches of the kernels where many items share each edge matrix, each for up to four groups of one kind.

A plan's tensors are source (E,) and, unless the type of an edge is its place (A > 0), ptr (D + 1,), where the
edges of each node begin in the walk (D + S + 1,), and those of ``Layout.typed``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.triton.launch import JOBS, Operands, Plan, atomic, source_gradient
from fgnn.nn.backends.triton.tile_sizes import PARTIALS, Tile, cdiv, processors, typed_tile
from fgnn.runtime.kernel_launch import launch

Job = tuple[Operands, Plan]
Upstream = tuple[Tensor, Tensor]  # the gradient at the result, and the winning places


class _Index(NamedTuple):
    """A plan's tensors; by place, the first alone."""

    source: Tensor
    ptr: Tensor | None = None
    node_ptr: Tensor | None = None
    kind: Tensor | None = None
    by_kind: Tensor | None = None
    kind_ptr: Tensor | None = None
    walk: Tensor | None = None


def kind_of(x: Operands, plan: Plan) -> Hashable:
    """What groups of one launch have in common; None for a group with launches of its own."""
    edges = plan.tensors[0]
    if plan.sizes.arity or not edges.numel() or not x.src.numel():
        return None
    return x.src.shape[0], x.weight.shape[1:], x.src.dtype, x.dst is None, plan.relu, plan.maximum, edges.dtype


class _Launch:
    """What the programs of a launch share, for one choice of tile."""

    def __init__(self, kind: str, jobs: Sequence[Job]) -> None:
        self.x, self.plan = jobs[0]
        batch, _, self.n = self.x.src.shape
        self.m = self.x.weight.shape[1]
        self.by_place = self.plan.sizes.arity > 0
        self.items = batch * self.plan.sizes.destinations if self.by_place else batch
        self.tile: Tile = typed_tile(kind, self.n, self.m, self.items, self.x.src.dtype, self.x.src.device)
        self.tiles = cdiv(self.items, self.tile.lines)

    def start(
        self, kernel: Any, grid: tuple[int, ...], groups: Sequence[Sequence[Any]], last: Any, **more: Any
    ) -> None:
        """Launch a kernel with the arguments of each group, the last ones, and its own compile-time options."""
        args = [argument for group in groups for argument in group]
        args += [None] * (len(groups[0]) * (JOBS - len(groups)))
        options = self.plan.options(self.x, self.tile, BI=self.tile.lines, G=len(groups), **more)
        launch(kernel, grid, [*args, *last], options)


def forward(jobs: Sequence[Job], places: torch.dtype | None) -> list[tuple[Tensor, Tensor]]:
    """Aggregate towards each destination; also the place of the first maximum (empty for a sum)."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    longest = max([plan.sizes.longest for _, plan in jobs])
    found = [plan.outputs(x, places, longest) for x, plan in jobs]
    one = _Launch("forward", jobs)
    groups = []
    for (x, plan), (out, arg) in zip(jobs, found, strict=True):
        index = _Index(*plan.tensors)
        groups.append([
            x.dst, x.src, index.kind, x.weight, index.source, index.ptr, out, arg, out.shape[1], x.src.shape[1],
        ])  # fmt: skip
    nodes = 1 if one.by_place else sum([out.shape[1] for out, _ in found])
    if found[0][0].numel():
        grid = one.tiles * nodes, cdiv(one.m, one.tile.columns)
        one.start(kernels.typed_forward, grid, groups, (one.items, nodes), BY_ITEM=one.by_place)
    return found


def backward(jobs: Sequence[Job], upstream: Sequence[Upstream], wants: Sequence[Sequence[bool]]) -> list[list[Any]]:
    """Gradients at the operands, at W as shares (splits, T, m, n) of a sum; None or empty if they are not wanted."""
    if not upstream[0][0].numel() or not jobs[0][1].tensors[0].numel():
        return [x.zeros(want) for (x, _), want in zip(jobs, wants, strict=True)]
    found = [x.gradients(want) for (x, _), want in zip(jobs, wants, strict=True)]
    at = [k for k, want in enumerate(wants) if want[0] or want[1]]
    if at and jobs[0][1].sizes.arity:
        found[0][1] = _place_gradients(jobs[0], upstream[0], wants[0], found[0])
    elif at:
        _node_gradients(
            [jobs[k] for k in at], [upstream[k] for k in at], [wants[k] for k in at], [found[k] for k in at]
        )
    at = [k for k, want in enumerate(wants) if want[3]]
    shares = iter(_weight_gradients([jobs[k] for k in at], [upstream[k] for k in at]) if at else ())
    return [[*grads, next(shares) if want[3] else None] for grads, want in zip(found, wants, strict=True)]


def _node_gradients(
    jobs: Sequence[Job], upstream: Sequence[Upstream], wants: Sequence[Sequence[bool]], found: Sequence[Sequence[Any]]
) -> None:
    """Fill the gradients at dst and src, each node summed over its own list of edges without atomics."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    one = _Launch("nodes", jobs)
    groups, nodes = [], 0
    for (x, plan), (grad, arg), want, (d_dst, d_src, _) in zip(jobs, upstream, wants, found, strict=True):
        index, count, sources = _Index(*plan.tensors), plan.sizes.destinations, x.src.shape[1]
        mine = (count if want[0] else 0) + (sources if want[1] else 0)
        nodes += mine
        groups.append([
            x.dst, x.src, x.weight, index.walk, index.node_ptr, grad, arg, d_dst, d_src, count, sources,
            0 if want[0] else count, mine,
        ])  # fmt: skip
    ahead = one.n <= one.tile.inner and one.m <= one.tile.columns
    grid = one.tiles * nodes, cdiv(one.n, one.tile.inner)
    one.start(kernels.typed_nodes, grid, groups, (one.items, nodes), AHEAD=ahead, by_arity=False)


def _place_gradients(job: Job, upstream: Upstream, wants: Sequence[bool], grads: Sequence[Tensor]) -> Tensor:
    """Fill the gradient at dst and return that at src, if the type of an edge is its place."""
    from fgnn.nn.backends.triton import typed_edge_kernels as kernels

    x, plan = job
    one, source = _Launch("places", [job]), plan.tensors[0]
    by_source = x.source_buffer(source.shape[0], wants[1])
    args = [
        x.dst, x.src, x.weight, source, *upstream, grads[0], by_source, one.items, plan.sizes.destinations,
        x.src.shape[1], source.shape[0],
    ]  # fmt: skip
    options = plan.options(
        x, one.tile, BI=one.tile.lines, NEED_DST=wants[0], NEED_SRC=wants[1], ATOMIC=atomic()
    )  # fmt: skip
    launch(kernels.places_backward, (one.tiles, cdiv(one.n, one.tile.inner)), args, options)
    return source_gradient(by_source, source, grads[1])


def _weight_gradients(jobs: Sequence[Job], upstream: Sequence[Upstream]) -> list[Tensor]:
    from fgnn.nn.backends.triton.typed_weight_kernels import typed_weight

    one = _Launch("weight", jobs)
    blocks = cdiv(one.n, one.tile.inner) * cdiv(one.m, one.tile.columns)
    terms = [x.weight.shape[0] for x, _ in jobs]
    steps = [
        one.tiles * (1 if one.by_place else cdiv(plan.tensors[0].shape[0], count))
        for (_, plan), count in zip(jobs, terms, strict=True)
    ]
    # all programs take about as many steps
    total = blocks * sum([count * each for count, each in zip(terms, steps, strict=True)])
    most = cdiv(total, 2 * processors(one.x.src.device))
    groups, found, programs = [], [], 0
    for (x, plan), (grad, arg), each in zip(jobs, upstream, steps, strict=True):
        index, (count, m, n) = _Index(*plan.tensors), x.weight.shape
        splits = max(1, min(cdiv(each, most), PARTIALS // x.weight.numel()))
        found.append(x.src.new_empty((splits, count, m, n), dtype=torch.float32))
        programs += count * splits
        groups.append([
            x.dst, x.src, index.source, index.by_kind, index.kind_ptr, grad, arg, found[-1], plan.sizes.destinations,
            x.src.shape[1], count, splits,
        ])  # fmt: skip
    one.start(typed_weight, (programs, blocks), groups, (one.items,), BY_ITEM=one.by_place)
    return found
