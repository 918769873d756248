r"""Launch ``winner_weights``: the gradient of a maximum at W, from winning edges alone.

The message of destination d has a gradient :math:`\gamma_{dc}` in column c at one edge only, the winner e(d, c):

.. math:: dW_\tau[c] = \sum_d \gamma_{dc}\, \varphi_{e(d,c)\,\tau}\, h_{e(d,c)}

With A edges at a destination that is an A-th of the products that a sum over edges has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.nn.backends.cuda import options
from fgnn.nn.backends.cuda.options import PLACES, WIDE
from fgnn.nn.backends.triton.launch import Operands, Plan
from fgnn.nn.backends.triton.tile_sizes import cdiv, processors, splits_of
from fgnn.runtime.cuda_launch import cuda_binary, launch_cuda
from fgnn.runtime.nvrtc import CudaSource

KERNEL = CudaSource("fgnn.nn.backends.cuda", "winner_weights.cu", "winner_weights", before=("numbers.cu", "winners.cu"))
_THREADS, _SHARED = 512, 134752  # bytes, of ``Memory`` in the kernel
_DESTINATIONS = 16  # of a tile
_INNER = 32  # columns of h of a block
_EDGES = 8  # at a destination on average: with fewer, sums over all edges are faster
_LONGEST = 8192  # edges of a destination: one block takes them all


def fits(x: Operands, plan: Plan, grad: Tensor, arg: Tensor) -> bool:
    """Whether the kernel takes these operands, and is faster than a sum over all edges.

    In float16, gradients times φ leave the range of numbers too easily.
    """
    if not plan.maximum or grad.dtype != x.src.dtype or x.src.dtype == torch.float16 or arg.dtype not in PLACES:
        return False
    return pays(x, plan) and options.fits(x, plan, _SHARED, (grad, arg))


def pays(x: Operands, plan: Plan) -> bool:
    """Whether there are enough tiles, and enough edges that have not won."""
    sizes, (_, m, n) = plan.sizes, x.weight.shape
    blocks = cdiv(x.src.shape[0] * sizes.destinations, _DESTINATIONS) * cdiv(m, WIDE) * cdiv(n, _INNER)
    many = plan.tensors[0].shape[0] >= _EDGES * sizes.destinations
    return many and sizes.longest <= _LONGEST and blocks >= processors(x.src.device)


def weights(grad: Tensor, arg: Tensor, x: Operands, plan: Plan) -> Tensor:
    """The gradient at W as shares (splits, T, m, n) of a sum."""
    source, edge, ptr = (plan.tensors[k] for k in (0, 1, 4))
    batch, sources, n = x.src.shape
    terms, m, _ = x.weight.shape
    device, total = x.src.device, batch * plan.sizes.destinations
    columns, blocks = cdiv(m, WIDE), cdiv(n, _INNER)
    splits = splits_of(columns * blocks, cdiv(total, _DESTINATIONS), x.weight.numel(), device)
    shares = x.src.new_empty((splits, terms, m, n), dtype=torch.float32)
    macros = (*options.defines(x, plan, arg.dtype), ("SHARED", _SHARED))
    binary = cuda_binary(KERNEL, macros, device.index, _THREADS, _SHARED, "8P8iP")
    launch_cuda(
        binary, (splits, columns, blocks),
        [x.dst, x.src, x.coef, source, edge if edge.numel() else None, ptr, grad, arg, total, plan.sizes.destinations,
         sources, source.shape[0], n, m, terms, plan.sizes.arity, shares],
    )  # fmt: skip
    return shares
