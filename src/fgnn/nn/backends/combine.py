"""The end of a half-layer in one pass: combine the aggregates of the groups, add the bias, apply ReLU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MOST = 254  # groups
_NONE = 255  # no part gets the gradient of an entry


def forward(
    parts: Sequence[Tensor], bias: Tensor | None, empty: Tensor | None, maximum: bool, relu: bool, fused: bool
) -> tuple[Tensor, Tensor]:
    r"""Combine the aggregates x_k of several groups, entry by entry:

    .. math:: y = \sigma\Big(\max_k x_k + \beta\Big) \quad\text{or}\quad y = \sigma\Big(\sum_k x_k + \beta\Big)

    On a tie the earlier group gets the gradient; NaN propagates. As separate operations this takes seven passes over
    memory, and as many kernels for each of them.

    Args:
        parts: Each (..., D, m), of one dtype, which the result has too.
        bias: β (m,).
        empty: (D,) True for destinations without edges, where the result is zero.
        maximum: Maximum or sum.
        relu: Whether σ is ReLU.
        fused: Whether to use the kernel.

    Returns:
        y (..., D, m), and which part gets the gradient of each entry (for a sum 0: all of them).
    """
    if fused and parts[0].numel():
        from fgnn.nn.backends.triton import combine as by_triton

        return by_triton.forward(parts, bias, empty, maximum, relu)
    total, which = parts[0], torch.zeros_like(parts[0], dtype=torch.uint8)
    for k, part in enumerate(parts[1:], 1):
        if maximum:
            wins = (part > total) | part.isnan()
            total, which = torch.where(wins, part, total), which.masked_fill_(wins, k)
        else:
            total = total + part
    y = total.clone() if bias is None else (total + bias).to(total.dtype)
    if relu:
        which = which.masked_fill_(y <= 0, _NONE)
        y = y.relu_()
    if empty is not None:
        y, which = y.masked_fill_(empty.unsqueeze(-1), 0), which.masked_fill_(empty.unsqueeze(-1), _NONE)
    return y, which


def backward(
    grad: Tensor, which: Tensor, parts: int, has_bias: bool, maximum: bool, fused: bool
) -> tuple[list[Tensor], Tensor]:
    """Gradients at the parts, and at the bias in float32 or better (empty without bias)."""
    if fused and grad.numel():
        from fgnn.nn.backends.triton import combine as by_triton

        return by_triton.backward(grad, which, parts, has_bias, maximum)
    passes = grad.masked_fill(which == _NONE, 0)
    d_bias = passes.new_empty(0, dtype=_wide(grad.dtype))
    if has_bias:
        d_bias = passes.flatten(0, -2).sum(0, dtype=_wide(grad.dtype))
    if not maximum or parts == 1:
        return [passes.clone() for _ in range(parts)], d_bias
    return [passes.masked_fill(which != k, 0) for k in range(parts)], d_bias


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
