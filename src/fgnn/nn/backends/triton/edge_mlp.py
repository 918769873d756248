"""Coefficients φ(t) of all edges by one kernel each way: a small network on many rows.

As separate operations the hidden layer would pass through memory five times, and the gradients at its weights would be
products of a dozen by millions by a dozen, which libraries handle badly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.triton.tile_sizes import block, cdiv, processors
from fgnn.runtime.float32 import allows_tf32
from fgnn.runtime.kernel_launch import constants, launch
from fgnn.runtime.triton_support import power_of_two

_EDGES = 128  # per tile
_WIDEST = 64
_SHARES = 4  # programs per multiprocessor that sum gradients


def fits(t: Tensor, w1: Tensor, w2: Tensor) -> bool:
    """Whether the kernels support W₂ ReLU(W₁ t + b₁) + b₂: narrow layers, and t (E, d) without gradient."""
    hidden, widest = w1.shape[0], max(*w1.shape, w2.shape[0])
    return not t.requires_grad and t.dim() == 2 and widest <= _WIDEST and hidden == max(power_of_two(hidden), 16)


def forward(t: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, dtype: torch.dtype) -> Tensor:
    """The network on t (E, d), contiguous, in ``dtype``; products inside are TF32 if that is a half precision."""
    from fgnn.nn.backends.triton import edge_mlp_kernels as kernels

    edges, terms = t.shape[0], w2.shape[0]
    out = t.new_empty((edges, terms), dtype=dtype)
    if edges:
        args = [t, w1.contiguous(), b1, w2.contiguous(), b2, out, edges, terms]
        launch(kernels.edge_mlp_forward, (cdiv(edges, _EDGES),), args, _options(t, w1, w2, dtype))
    return out


def backward(grad: Tensor, t: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, ...]:
    """Gradients at the four parameters; ``grad`` has the dtype of the result."""
    from fgnn.nn.backends.triton import edge_mlp_kernels as kernels

    edges, terms = t.shape[0], w2.shape[0]
    shares = max(1, min(_SHARES * processors(t.device), cdiv(edges, _EDGES)))
    shapes = (w1.shape, b1.shape, w2.shape, (terms,))
    if not edges:
        return tuple(w1.new_zeros(shape) for shape in shapes)
    sizes = [math.prod(shape) for shape in shapes]
    # One piece of memory, so that one sum serves all four: a program's gradients are a row of it.
    flat = t.new_empty((shares, sum(sizes)), dtype=torch.float32)
    partial = flat.split(sizes, 1)
    args = [
        t, w1.contiguous(), b1, w2.contiguous(), grad, *partial, edges, terms, grad.stride(0), grad.stride(1),
        shares, flat.shape[1],
    ]  # fmt: skip
    launch(kernels.edge_mlp_backward, (shares,), args, _options(t, w1, w2, grad.dtype))
    totals = flat.sum(0).to(w1.dtype).split(sizes)
    return tuple(total.view(shape) for total, shape in zip(totals, shapes, strict=True))


def _options(t: Tensor, w1: Tensor, w2: Tensor, dtype: torch.dtype) -> Mapping[str, Any]:
    precision = "tf32" if dtype != torch.float32 or allows_tf32() else "ieee"
    return constants(
        D=t.shape[1], H=w1.shape[0], BD=block(t.shape[1], _WIDEST), BT=block(w2.shape[0], _WIDEST), BE=_EDGES,
        PREC=precision, num_warps=4,
    )  # fmt: skip
