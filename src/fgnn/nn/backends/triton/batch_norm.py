"""Batch normalisation followed by ReLU, of several kinds of nodes at once, in one pass over the rows each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fgnn.nn.backends import differentiable
from fgnn.nn.backends.triton.launch import four, in_turn
from fgnn.nn.backends.triton.tile_sizes import block, cdiv, processors
from fgnn.runtime.kernel_launch import constants, launch

_ALIGNED = 16  # bytes, as launches that can be repeated expect
_AT_ONCE = 2  # programs of a multiprocessor that sum shares


class Normalised(NamedTuple):
    """One kind of nodes: x (R, d), its norm, a bias on x, and a residual of the same shape and type as x."""

    x: Tensor
    norm: nn.BatchNorm1d
    bias: Tensor | None = None
    residual: Tensor | None = None

    @property
    def running(self) -> list[Tensor | None]:
        """The running statistics and the number of batches they are of; None where absent or not for the kernel."""
        norm, count = self.norm, self.norm.num_batches_tracked
        if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
            return [None, None, None]
        there = count is not None and count.device == self.x.device and not count.data_ptr() % _ALIGNED
        return [norm.running_mean, norm.running_var, count if there else None]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What jobs must have in common to share a launch."""
        norm, absent = self.norm, [t is None or t.dtype for t in (self.bias, self.residual, *self.running)]
        return (self.x.shape[1], self.x.dtype, norm.eps, norm.momentum, norm.weight.dtype, norm.bias.dtype, *absent)


def batch_norm_relu(jobs: Sequence[Normalised], *, relu: bool) -> list[Tensor]:
    r"""Normalise x over its rows as in training, apply σ, and add the residual r:

    .. math:: y = \sigma\big(w \odot (x - \bar x) / \sqrt{\operatorname{var} x + \epsilon} + \beta\big) + r

    A bias on x would cancel, so it only enters the running mean, and its gradient is exactly zero. Separate operations
    would make more than twice as many passes over memory.
    """
    found: list[Tensor] = []
    norms = [job.norm for job in jobs]  # one of two kinds of nodes takes two launches: each updates its statistics
    for part in in_turn([(job.kind, norms[:k].count(job.norm)) for k, job in enumerate(jobs)]):
        some = jobs[part]
        flat = [(job.x, job.bias, job.norm.weight, job.norm.bias, job.residual) for job in some]
        operands = [x for each in zip(*flat, strict=True) for x in each]  # all x, then all biases, and so on
        found += _BatchNormRelu.apply(some, relu, *operands)  # type: ignore[no-untyped-call]
    for job in jobs:
        count = job.norm.num_batches_tracked
        if job.norm.track_running_stats and count is not None and job.running[2] is None:
            count.add_(1)
    return found


class _BatchNormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, jobs: Sequence[Normalised], relu: bool, *operands: Tensor | None) -> tuple[Tensor, ...]:
        from fgnn.nn.backends.triton import batch_norm_kernels as kernels

        given, biases, weights, betas, added = _split(operands, len(jobs))
        xs = [x.contiguous() for x in given]
        residuals = [None if r is None else r.contiguous() for r in added]
        one, norm = _Launch(xs), jobs[0].norm
        stats = xs[0].new_empty((len(jobs), 2, one.width), dtype=torch.float32)  # means, and 1 / deviations
        means, variances, counts = zip(*[job.running for job in jobs], strict=True)
        args = [
            *four(xs), *four(biases), *four(means), *four(variances), *four(counts), *one.rows, one.partial, one.done,
            stats, one.width, one.steps, one.shares, norm.eps, norm.momentum,
        ]  # fmt: skip
        options = one.options(
            HAS_BIAS=biases[0] is not None, RUNNING=means[0] is not None, TRACKED=counts[0] is not None
        )
        launch(kernels.statistics, one.by_share, args, options)
        ys = [torch.empty_like(x) for x in xs]
        args = [*four(xs), *four(weights), *four(betas), *four(residuals), *four(ys), *one.rows, stats, one.width]
        launch(kernels.apply, one.by_tile, args, one.options(RELU=relu, HAS_RESIDUAL=residuals[0] is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(stats, *given, *weights, *betas)
        ctx.eps, ctx.relu = norm.eps, relu
        ctx.biases = [None if bias is None else (bias.shape, bias.dtype) for bias in biases]
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        stats, *saved = ctx.saved_tensors
        count, relu = len(grads), ctx.relu
        wants = _split(ctx.needs_input_grad[2:], count)
        jobs = list(zip(*_split(saved, count), strict=True))
        found: list[Sequence[Tensor | None]] = [(None, None, None, None)] * count
        live = {k: grad for k, grad in enumerate(grads) if grad is not None}
        if torch.is_grad_enabled():
            for k, grad in live.items():
                x, size = jobs[k][0], ctx.biases[k]
                want = [wants[0][k], wants[2][k], wants[3][k]]
                first, *rest = differentiable.gradients(partial(_plain, ctx.eps, relu), jobs[k], want, [grad])
                found[k] = first, None if size is None else x.new_zeros(size[0], dtype=size[1]), *rest
        elif live:
            some = stats if len(live) == count else torch.stack([stats[k] for k in live])
            dxs, sums = _gradients([jobs[k] for k in live], list(live.values()), some, relu, any(wants[0]))
            for k, dx, (beta, weight, bias) in zip(live, dxs, sums, strict=True):
                size = ctx.biases[k]
                d_bias = None if size is None else bias.to(size[1]).view(size[0])
                found[k] = dx, d_bias, weight.to(jobs[k][1].dtype), beta.to(jobs[k][2].dtype)
        d_residuals = [grad if want else None for grad, want in zip(grads, wants[4], strict=True)]
        d_xs, d_biases, d_weights, d_betas = zip(*found, strict=True)
        return None, None, *d_xs, *d_biases, *d_weights, *d_betas, *d_residuals


def _gradients(
    jobs: Sequence[tuple[Tensor, Tensor, Tensor]], grads: Sequence[Tensor], stats: Tensor, relu: bool, want_x: bool
) -> tuple[list[Tensor | None], list[tuple[Tensor, Tensor, Tensor]]]:
    """The gradients at each x, and those at each shift, scale and bias; jobs are x, the scale and the shift."""
    from fgnn.nn.backends.triton import batch_norm_kernels as kernels

    given, weights, betas = zip(*jobs, strict=True)
    xs, ups = [x.contiguous() for x in given], [grad.contiguous() for grad in grads]
    one = _Launch(xs)
    sums = xs[0].new_empty((len(jobs), 3, one.width), dtype=torch.float32)
    inputs = [*four(ups), *four(xs), *four(weights), *four(betas), *one.rows, stats]
    args = [*inputs, one.partial, one.done, sums, one.width, one.steps, one.shares]
    launch(kernels.gradient_sums, one.by_share, args, one.options(RELU=relu))
    dxs: list[Tensor | None] = [None] * len(jobs)
    if want_x:
        dxs = [torch.empty_like(x) for x in xs]
        launch(kernels.apply_gradient, one.by_tile, [*inputs, *four(dxs), sums, one.width], one.options(RELU=relu))
    return dxs, [(x[0], x[1], x[2]) for x in sums.unbind()]


def _split(flat: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """Operands of all jobs: ``count`` of each sort."""
    return [flat[k : k + count] for k in range(0, len(flat), count)]


def _plain(eps: float, relu: bool, operands: Sequence[Tensor]) -> list[Tensor]:
    """The result without the residual, by operations that autograd knows."""
    x, weight, beta = operands
    y = x.float()
    centred = y - y.mean(0)
    y = centred * torch.rsqrt(centred.square().mean(0) + eps) * weight + beta
    return [(y.relu() if relu else y).to(x.dtype)]


class _Launch:
    """Tiles of about 4096 entries, in whole rows up to 128 columns, and the shares into which column sums are split."""

    def __init__(self, xs: Sequence[Tensor]) -> None:
        jobs, self.width = len(xs), xs[0].shape[1]
        rows = [x.shape[0] for x in xs]
        columns = block(self.width, 128)
        lines = max(8, 4096 // columns)
        blocks, tiles = cdiv(self.width, columns), [cdiv(count, lines) for count in rows]
        most = max(tiles)
        # tiles of a share, as many of each job
        programs = max(1, _AT_ONCE * processors(xs[0].device) // (blocks * jobs))
        # the last program reads all shares, which should not take longer than its tiles
        self.steps = max(cdiv(most, min(most, programs)), isqrt(2 * most // lines))
        self.shares = cdiv(most, self.steps)
        self.by_share, self.by_tile = (self.shares * jobs, blocks), (sum(tiles), blocks)
        self.partial = xs[0].new_empty((self.shares, jobs, 2, self.width), dtype=torch.float32)
        # counts from zero; as floats, so that a recorded pass fills all its zeros at once
        self.done = xs[0].new_zeros((jobs, blocks), dtype=torch.float32).view(torch.int32)
        self.rows = four(rows)
        self._options = {"G": jobs, "R": lines, "C": columns, "num_warps": 4}

    def options(self, **more: bool) -> Mapping[str, Any]:
        """The compile-time arguments of a kernel over tiles."""
        return constants(**self._options, **more)
