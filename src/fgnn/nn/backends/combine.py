"""The end of a half-layer in one pass: combine the aggregates of the groups, add the bias, apply ReLU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.nn.backends.triton import combine as by_triton
from fgnn.nn.backends.triton.combine import End
from fgnn.nn.backends.triton.late_sum import LateSum

MOST = 254  # groups
_NONE = 255  # no part gets the gradient of an entry


def forward(ends: Sequence[End], maximum: bool, relu: bool, fused: bool) -> list[tuple[Tensor, Tensor]]:
    r"""Combine the aggregates x_k of several groups, entry by entry, to one result or several:

    .. math:: y = \sigma\Big(\max_k x_k + \beta\Big) \quad\text{or}\quad y = \sigma\Big(\sum_k x_k + \beta\Big)

    On a tie the earlier group gets the gradient; NaN propagates. As separate operations this takes seven passes over
    memory, and as many kernels for each of them.

    Args:
        ends: For each result its parts, of one dtype, which the result has too.
        maximum: Maximum or sum.
        relu: Whether σ is ReLU.
        fused: Whether to use the kernel, one launch for all results of one part each.

    Returns:
        For each result y (..., D, m), and which part gets the gradient of each entry (for a sum 0: all of them).
    """
    if fused and all(end.parts[0].numel() for end in ends):
        return by_triton.forward(ends, maximum, relu)
    return [_forward(end, maximum, relu) for end in ends]


def _forward(end: End, maximum: bool, relu: bool) -> tuple[Tensor, Tensor]:
    # On a CPU, filling by a mask takes several times longer than a maximum of bytes or of numbers.
    parts, bias, empty = end
    total, which = parts[0], torch.zeros_like(parts[0], dtype=torch.uint8)
    for k, part in enumerate(parts[1:], 1):
        if maximum:
            which = torch.maximum(which, ((part > total) | part.isnan()).view(torch.uint8).mul_(k))
            total = torch.maximum(total, part)  # NaN propagates
        else:
            total = total + part
    y = total.clone() if bias is None else (total + bias).to(total.dtype)
    if relu:
        which = torch.maximum(which, (y <= 0).view(torch.uint8).mul_(_NONE))
        y = y.relu_()
    if empty is not None:
        y, which = y.masked_fill_(empty.unsqueeze(-1), 0), which.masked_fill_(empty.unsqueeze(-1), _NONE)
    return y, which


def backward(
    grads: Sequence[Tensor], whiches: Sequence[Tensor], parts: int, has_bias: bool, maximum: bool, fused: bool
) -> tuple[list[list[Tensor]], list[LateSum]]:
    """Gradients at the parts of each result, and sums (results, m) in float32 or better: those at the biases, in order.

    There are none without biases.
    """
    if fused and all(grad.numel() for grad in grads):
        return by_triton.backward(grads, whiches, parts, has_bias, maximum)
    found, sums = [], []
    for grad, which in zip(grads, whiches, strict=True):
        order = which.to(grad.dtype)
        passes = _where_above(grad, -order, -_NONE)
        if has_bias:
            d_bias = passes.flatten(0, -2).sum(0, dtype=torch.promote_types(grad.dtype, torch.float32))
            sums.append(LateSum(d_bias.view(1, 1, -1)))
        if not maximum or parts == 1:
            found.append([passes, *(passes.clone() for _ in range(1, parts))])
        else:
            found.append([_where_above(_where_above(passes, order, k - 1), -order, -k - 1) for k in range(parts)])
    return found, sums


def _where_above(x: Tensor, order: Tensor, bound: int) -> Tensor:
    """x where ``order`` exceeds the bound, else 0: the gradient of a ReLU, which is vectorised on a CPU."""
    found: Tensor = torch.ops.aten.threshold_backward(x, order, bound)
    return found
