"""Coefficients φ(t) of all edges by one kernel each way: a small network on many rows.

As separate operations the hidden layer would pass through memory five times, and the gradients at its weights would be
products of a dozen by millions by a dozen, which libraries handle badly.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fgnn.nn.backends.choice import working_dtype
from fgnn.nn.backends.triton.tile_sizes import block, cdiv, processors
from fgnn.runtime.triton_support import power_of_two

_EDGES = 128  # per tile
_WIDEST = 64
_SHARES = 4  # programs per multiprocessor that sum gradients


def fits(first: nn.Linear, last: nn.Linear, t: Tensor) -> bool:
    """Whether the kernels support W₂ ReLU(W₁ t + b₁) + b₂: narrow layers, and t (E, d) without gradient."""
    hidden, widest = first.out_features, max(first.in_features, first.out_features, last.out_features)
    return not t.requires_grad and t.dim() == 2 and widest <= _WIDEST and hidden == max(power_of_two(hidden), 16)


def edge_mlp(first: nn.Linear, last: nn.Linear, t: Tensor) -> Tensor:
    """The network on t (E, d). Under autocast the result has its dtype; products inside are TF32."""
    half, dtype = torch.is_autocast_enabled(t.device.type), working_dtype(t)
    out: Tensor = _EdgeMLP.apply(t.contiguous(), first.weight, first.bias, last.weight, last.bias, dtype, half)  # type: ignore[no-untyped-call]
    return out


class _EdgeMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, t: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, dtype: torch.dtype, half: bool
    ) -> Tensor:
        from fgnn.nn.backends.triton import edge_mlp_kernels as kernels

        edges, terms = t.shape[0], w2.shape[0]
        out = t.new_empty((edges, terms), dtype=dtype)
        ctx.save_for_backward(t, w1, b1, w2)
        ctx.sizes = _sizes(t, w1, w2, half)
        if edges:
            kernels.edge_mlp_forward[(cdiv(edges, _EDGES),)](
                t, w1.contiguous(), b1, w2.contiguous(), b2, out, edges, terms, **ctx.sizes, num_warps=4
            )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from fgnn.nn.backends.triton import edge_mlp_kernels as kernels

        t, w1, b1, w2 = ctx.saved_tensors
        edges, terms = t.shape[0], w2.shape[0]
        shares = max(1, min(_SHARES * processors(t.device), cdiv(edges, _EDGES)))
        shapes = (w1.shape, b1.shape, w2.shape, (terms,))
        if not edges:
            return (None, *(w1.new_zeros(shape) for shape in shapes), None, None)
        sizes = [math.prod(shape) for shape in shapes]
        # One piece of memory, so that one sum serves all four: a program's gradients are a row of it.
        flat = t.new_empty((shares, sum(sizes)), dtype=torch.float32)
        partial = flat.split(sizes, 1)
        kernels.edge_mlp_backward[(shares,)](
            t, w1.contiguous(), b1, w2.contiguous(), grad, *partial, edges, terms, grad.stride(0), grad.stride(1),
            shares, flat.shape[1], **ctx.sizes, num_warps=4,
        )  # fmt: skip
        totals = flat.sum(0).to(w1.dtype).split(sizes)
        return (None, *(total.view(shape) for total, shape in zip(totals, shapes, strict=True)), None, None)


def _sizes(t: Tensor, w1: Tensor, w2: Tensor, half: bool) -> dict[str, Any]:
    return {
        "D": t.shape[1],
        "H": w1.shape[0],
        "BD": block(t.shape[1], _WIDEST),
        "BT": block(w2.shape[0], _WIDEST),
        "BE": _EDGES,
        "PREC": "tf32" if half or torch.get_float32_matmul_precision() != "highest" else "ieee",
    }
