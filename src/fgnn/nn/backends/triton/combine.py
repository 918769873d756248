"""Launches of the kernels in ``combine_kernels``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.triton.late_sum import LateSum
from fgnn.nn.backends.triton.launch import JOBS, four, in_turn
from fgnn.nn.backends.triton.tile_sizes import block, cdiv, processors
from fgnn.runtime.kernel_launch import constants, launch

_TILE = 4096  # entries
PARTS = JOBS  # that a kernel reads


class End(NamedTuple):
    """What becomes one result: aggregates (..., D, m), β (m,), and a mask of the destinations without edges (D,)."""

    parts: Sequence[Tensor]
    bias: Tensor | None
    empty: Tensor | None


def forward(ends: Sequence[End], maximum: bool, relu: bool) -> list[tuple[Tensor, Tensor]]:
    """See :func:`fgnn.nn.backends.combine.forward`."""
    found: list[tuple[Tensor, Tensor]] = []
    kinds = [
        None if len(parts) > 1 else (parts[0].shape[-1], parts[0].dtype, bias is None or bias.dtype, empty is None)
        for parts, bias, empty in ends
    ]
    for some in in_turn(kinds):
        found += _forward(ends[some], maximum, relu)
    return found


def backward(
    grads: Sequence[Tensor], whiches: Sequence[Tensor], parts: int, has_bias: bool, maximum: bool
) -> tuple[list[list[Tensor]], list[LateSum]]:
    """See :func:`fgnn.nn.backends.combine.backward`."""
    found: list[list[Tensor]] = []
    sums: list[LateSum] = []
    for some in in_turn([None if parts > 1 else (grad.shape[-1], grad.dtype) for grad in grads]):
        given = [grad.contiguous() for grad in grads[some]]
        d_parts, shares = _backward(given, whiches[some], parts, has_bias, maximum)
        found += d_parts
        sums += [] if shares is None else [LateSum(shares)]
    return found, sums


def _forward(ends: Sequence[End], maximum: bool, relu: bool) -> list[tuple[Tensor, Tensor]]:
    from fgnn.nn.backends.triton.combine_kernels import combine_forward

    (parts, bias, empty), given = ends[0], [x.contiguous() for end in ends for x in end.parts]
    firsts = given[: len(ends)]
    m = firsts[0].shape[-1]
    found = [(torch.empty_like(x), torch.empty_like(x, dtype=torch.uint8)) for x in firsts]
    rows = [x.numel() // m for x in firsts]
    lines, columns = _tile(m)
    options = constants(
        M=m, G=len(ends), P=len(parts), MAX=maximum, RELU=relu, HAS_BIAS=bias is not None,
        HAS_EMPTY=empty is not None, R=lines, C=columns, num_warps=4,
    )  # fmt: skip
    args = [
        *four(given), *four([end.bias for end in ends]), *four([end.empty for end in ends]),
        *four([y for y, _ in found]), *four([which for _, which in found]),
        *four(rows), *four([x.shape[-2] for x in firsts]),
    ]  # fmt: skip
    launch(combine_forward, (sum([cdiv(count, lines) for count in rows]), cdiv(m, columns)), args, options)
    return found


def _backward(
    grads: Sequence[Tensor], whiches: Sequence[Tensor], parts: int, has_bias: bool, maximum: bool
) -> tuple[list[list[Tensor]], Tensor | None]:
    """Gradients at the parts of each result, and shares (S, results, m) of those at the biases."""
    from fgnn.nn.backends.triton.combine_kernels import combine_backward

    m, ends = grads[0].shape[-1], len(grads)
    rows, lines, columns = [grad.numel() // m for grad in grads], *_tile(m)
    tiles, blocks = cdiv(max(rows), lines), cdiv(m, columns)
    steps = cdiv(tiles, min(tiles, max(1, 4 * processors(grads[0].device) // (blocks * ends)))) if has_bias else 1
    shares = cdiv(tiles, steps)
    stored = parts if maximum else 1  # all parts of a sum have the same gradient
    found = [[torch.empty_like(grad) for _ in range(stored)] for grad in grads]
    partial: Any = grads[0].new_empty((shares, ends, m), dtype=torch.float32) if has_bias else None
    options = constants(
        M=m, G=ends, P=stored, MAX=stored > 1, HAS_BIAS=has_bias, R=lines, C=columns, num_warps=4
    )  # fmt: skip
    args = [
        *four(grads), *four(whiches), *four([d for some in found for d in some]), *four(rows), partial, steps,
    ]  # fmt: skip
    launch(combine_backward, (shares * ends, blocks), args, options)
    return [some * (parts // stored) for some in found], partial


def _tile(m: int) -> tuple[int, int]:
    columns = block(m, 128)
    return max(8, _TILE // columns), columns
