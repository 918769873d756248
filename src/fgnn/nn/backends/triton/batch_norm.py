"""Batch normalisation of node features followed by ReLU, in one pass over the rows each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.nn.backends import differentiable
from fgnn.nn.backends.triton.tile_sizes import block, cdiv, processors
from fgnn.runtime.kernel_launch import constants, launch

_SHARES = 128  # partial sums added per step: few steps, because each waits for memory


def batch_norm_relu(
    x: Tensor, norm: nn.BatchNorm1d, bias: Tensor | None, *, relu: bool, residual: Tensor | None = None
) -> Tensor:
    r"""Normalise x (R, d) over its rows as in training, apply σ, and add a residual r of the same shape and type:

    .. math:: y = \sigma\big(w \odot (x - \bar x) / \sqrt{\operatorname{var} x + \epsilon} + \beta\big) + r

    A ``bias`` on x would cancel, so it only enters the running mean, and its gradient is exactly zero. Separate
    operations would make more than twice as many passes over memory.
    """
    y: Tensor = _BatchNormRelu.apply(x, bias, norm.weight, norm.bias, residual, norm, relu)  # type: ignore[no-untyped-call]
    return y


class _BatchNormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        weight: Tensor,
        beta: Tensor,
        residual: Tensor | None,
        norm: nn.BatchNorm1d,
        relu: bool,
    ) -> Tensor:
        from fgnn.nn.backends.triton import batch_norm_kernels as kernels

        given, x = x, x.contiguous()
        rows, width = x.shape
        one = _Launch(x)
        mean, rstd = x.new_empty((2, width), dtype=torch.float32).unbind()
        launch(kernels.statistics, one.by_share, [x, one.partial, rows, width, one.steps], one.options())
        running = norm.running_mean is not None and norm.running_var is not None
        tracked = norm.num_batches_tracked if running else None
        running_mean, running_var = (norm.running_mean, norm.running_var) if running else (mean, rstd)
        args = [x, one.partial, bias, mean, rstd, running_mean, running_var, tracked, rows, width, one.shares, norm.eps]
        options = constants(
            HAS_BIAS=bias is not None, RUNNING=running, TRACKED=tracked is not None, S=_SHARES, C=16, num_warps=4
        )
        launch(kernels.finish_statistics, (cdiv(width, 16),), [*args, norm.momentum], options)
        y = torch.empty_like(x)
        more = None if residual is None else residual.contiguous()
        options = one.options(RELU=relu, HAS_RESIDUAL=residual is not None)
        launch(kernels.apply, one.by_tile, [x, mean, rstd, weight, beta, more, y, rows, width], options)
        ctx.save_for_backward(given, mean, rstd, weight, beta)
        ctx.eps, ctx.relu, ctx.bias = norm.eps, relu, bias if bias is None else (bias.shape, bias.dtype)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from fgnn.nn.backends.triton import batch_norm_kernels as kernels

        x, mean, rstd, weight, beta = ctx.saved_tensors
        d_residual = grad if ctx.needs_input_grad[4] else None
        if torch.is_grad_enabled():
            d_bias = None if ctx.bias is None else x.new_zeros(ctx.bias[0], dtype=ctx.bias[1])
            wants = [ctx.needs_input_grad[k] for k in (0, 2, 3)]
            found = differentiable.gradients(partial(_plain, ctx.eps, ctx.relu), (x, weight, beta), wants, [grad])
            return found[0], d_bias, *found[1:], d_residual, None, None
        x, grad = x.contiguous(), grad.contiguous()
        rows, width = x.shape
        one = _Launch(x)
        sums = x.new_empty((3, width), dtype=torch.float32)
        inputs = grad, x, mean, rstd, weight, beta
        args = [*inputs, one.partial, rows, width, one.steps]
        launch(kernels.gradient_sums, one.by_share, args, one.options(RELU=ctx.relu))
        args = [one.partial, sums, width, one.shares]
        launch(kernels.finish_gradient_sums, (cdiv(width, 16),), args, constants(S=_SHARES, C=16, num_warps=4))
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            args = [*inputs, sums, dx, rows, width]
            launch(kernels.apply_gradient, one.by_tile, args, one.options(RELU=ctx.relu))
        d_bias = None if ctx.bias is None else sums[2].to(ctx.bias[1]).view(ctx.bias[0])
        return dx, d_bias, sums[1].to(weight.dtype), sums[0].to(beta.dtype), d_residual, None, None


def _plain(eps: float, relu: bool, operands: Sequence[Tensor]) -> list[Tensor]:
    """The result without the residual, by operations that autograd knows."""
    x, weight, beta = operands
    y = x.float()
    centred = y - y.mean(0)
    y = centred * torch.rsqrt(centred.square().mean(0) + eps) * weight + beta
    return [(y.relu() if relu else y).to(x.dtype)]


class _Launch:
    """Tiles of about 4096 entries, in whole rows up to 128 columns, and the shares into which column sums are split."""

    def __init__(self, x: Tensor) -> None:
        rows, width = x.shape
        columns = block(width, 128)
        lines = max(8, 4096 // columns)
        blocks, tiles = cdiv(width, columns), cdiv(rows, lines)
        self.steps = cdiv(tiles, min(tiles, max(1, 4 * processors(x.device) // blocks)))  # tiles of a share
        self.shares = cdiv(tiles, self.steps)
        self.by_share, self.by_tile = (self.shares, blocks), (tiles, blocks)
        self.partial = x.new_empty((self.shares, 2, width), dtype=torch.float32)
        self.lines, self.columns = lines, columns

    def options(self, **more: bool) -> Mapping[str, Any]:
        """The compile-time arguments of a kernel over tiles."""
        return constants(R=self.lines, C=self.columns, num_warps=4, **more)
