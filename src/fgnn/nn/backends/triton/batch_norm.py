"""Batch normalisation of node features and the ReLU after it, in one pass over the rows each way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.backends.triton.config import Tile, block, cdiv, processors

_SHARES = 128  # partial sums that one step of the last addition takes: few steps, each waits for memory


def batch_norm_relu(
    x: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    beta: Tensor,
    running: tuple[Tensor, Tensor] | None,
    *,
    eps: float,
    momentum: float,
    relu: bool,
    residual: Tensor | None = None,
) -> Tensor:
    r"""σ of x (R, d) normalised over its rows, as in training, plus a residual r of the same shape and type:

    .. math:: y = \sigma\big(w \odot (x - \bar x) / \sqrt{\operatorname{var} x + \epsilon} + \beta\big) + r

    A ``bias`` added to x before would cancel, so it is not added: only the running mean feels it, and its gradient is
    zero, exactly. Against separate operations this saves more than half of the passes over memory.
    """
    found: Tensor = _BatchNormRelu.apply(  # type: ignore[no-untyped-call]
        x, bias, weight, beta, residual, running, eps, momentum, relu
    )
    return found


class _BatchNormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        weight: Tensor,
        beta: Tensor,
        residual: Tensor | None,
        running: tuple[Tensor, Tensor] | None,
        eps: float,
        momentum: float,
        relu: bool,
    ) -> Tensor:
        from fgnn.nn.backends.triton import batch_norm_kernels as kernels

        x = x.contiguous()
        rows, width = x.shape
        tile = _tile(width)
        over, steps = _shares(rows, width, tile, x.device)
        partial = x.new_empty((over, 2, width), dtype=torch.float32)
        mean, rstd = x.new_empty((2, width), dtype=torch.float32).unbind()
        kernels.statistics[(over, cdiv(width, tile.columns))](
            x, partial, rows, width, steps, R=tile.lines, C=tile.columns, num_warps=tile.warps
        )
        running_mean, running_var = running if running is not None else (mean, rstd)
        kernels.finish_statistics[(cdiv(width, 16),)](
            x, partial, bias, mean, rstd, running_mean, running_var, rows, width, over, eps, momentum,
            HAS_BIAS=bias is not None, RUNNING=running is not None, S=_SHARES, C=16, num_warps=4,
        )  # fmt: skip
        y = torch.empty_like(x)
        kernels.apply[(cdiv(rows, tile.lines), cdiv(width, tile.columns))](
            x, mean, rstd, weight, beta, None if residual is None else residual.contiguous(), y, rows, width,
            RELU=relu, HAS_RESIDUAL=residual is not None, R=tile.lines, C=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        ctx.save_for_backward(x, mean, rstd, weight, beta)
        ctx.relu, ctx.bias = relu, bias if bias is None else (bias.shape, bias.dtype)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from fgnn.nn.backends.triton import batch_norm_kernels as kernels

        x, mean, rstd, weight, beta = ctx.saved_tensors
        grad = grad.contiguous()
        rows, width = x.shape
        tile = _tile(width)
        over, steps = _shares(rows, width, tile, x.device)
        partial = x.new_empty((over, 2, width), dtype=torch.float32)
        sums = x.new_empty((2, width), dtype=torch.float32)
        parts = cdiv(width, tile.columns)
        kernels.gradient_sums[(over, parts)](
            grad, x, mean, rstd, weight, beta, partial, rows, width, steps,
            RELU=ctx.relu, R=tile.lines, C=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        kernels.finish_gradient_sums[(cdiv(width, 16),)](partial, sums, width, over, S=_SHARES, C=16, num_warps=4)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            kernels.apply_gradient[(cdiv(rows, tile.lines), parts)](
                grad, x, mean, rstd, weight, beta, sums, dx, rows, width,
                RELU=ctx.relu, R=tile.lines, C=tile.columns, num_warps=tile.warps,
            )  # fmt: skip
        at_bias = None if ctx.bias is None else x.new_zeros(ctx.bias[0], dtype=ctx.bias[1])
        at_residual = grad if ctx.needs_input_grad[4] else None
        return dx, at_bias, sums[1].to(weight.dtype), sums[0].to(beta.dtype), at_residual, None, None, None, None


def _tile(width: int) -> Tile:
    """About 4096 entries, in whole rows up to 128 columns."""
    columns = block(width, 128)
    return Tile(max(8, 4096 // columns), columns, columns, 4, 1)


def _shares(rows: int, width: int, tile: Tile, device: torch.device) -> tuple[int, int]:
    """Into how many shares the rows are cut, and the tiles of one share."""
    tiles = cdiv(rows, tile.lines)
    wanted = max(1, 4 * processors(device) // cdiv(width, tile.columns))
    steps = cdiv(tiles, min(tiles, wanted))
    return cdiv(tiles, steps), steps
