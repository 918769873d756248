"""Launches of the kernels in ``combine_kernels``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.triton.kernel_launch import constants, launch
from fgnn.nn.backends.triton.tile_sizes import block, cdiv, processors

_TILE = 4096  # entries
PARTS = 4  # that a kernel reads


def forward(
    parts: Sequence[Tensor], bias: Tensor | None, empty: Tensor | None, maximum: bool, relu: bool
) -> tuple[Tensor, Tensor]:
    """See :func:`fgnn.nn.backends.combine.forward`."""
    from fgnn.nn.backends.triton.combine_kernels import combine_forward

    given = [x.contiguous() for x in parts]
    first = given[0]
    m, destinations = first.shape[-1], first.shape[-2]
    y, which = torch.empty_like(first), torch.empty_like(first, dtype=torch.uint8)
    rows, lines, columns = first.numel() // m, *_tile(m)
    options = constants(
        M=m, P=len(given), MAX=maximum, RELU=relu, HAS_BIAS=bias is not None, HAS_EMPTY=empty is not None,
        R=lines, C=columns, num_warps=4,
    )  # fmt: skip
    args = [*given, *[None] * (PARTS - len(given)), bias, empty, y, which, rows, destinations]
    launch(combine_forward, (cdiv(rows, lines), cdiv(m, columns)), args, options)
    return y, which


def backward(grad: Tensor, which: Tensor, parts: int, has_bias: bool, maximum: bool) -> tuple[list[Tensor], Tensor]:
    """See :func:`fgnn.nn.backends.combine.backward`."""
    from fgnn.nn.backends.triton.combine_kernels import combine_backward

    grad = grad.contiguous()
    m = grad.shape[-1]
    rows, lines, columns = grad.numel() // m, *_tile(m)
    tiles, blocks = cdiv(rows, lines), cdiv(m, columns)
    steps = cdiv(tiles, min(tiles, max(1, 4 * processors(grad.device) // blocks))) if has_bias else 1
    shares = cdiv(tiles, steps)
    stored = parts if maximum else 1  # all parts of a sum have the same gradient
    found = [torch.empty_like(grad) for _ in range(stored)]
    partial: Any = grad.new_empty((shares, m), dtype=torch.float32) if has_bias else None
    options = constants(M=m, P=stored, MAX=stored > 1, HAS_BIAS=has_bias, R=lines, C=columns, num_warps=4)
    args = [grad, which, *found, *[None] * (PARTS - stored), partial, rows, steps]
    launch(combine_backward, (shares, blocks), args, options)
    return found * (parts // stored), partial.sum(0) if has_bias else grad.new_empty(0, dtype=torch.float32)


def _tile(m: int) -> tuple[int, int]:
    columns = block(m, 128)
    return max(8, _TILE // columns), columns
