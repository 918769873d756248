"""Small linear layers, forward and backward, without autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fgnn.nn.backends.triton import linear as by_triton
from fgnn.nn.backends.triton.linear import Gradients, Linear


def forward(layers: Sequence[Linear], relu: bool, dtype: torch.dtype, fused: bool) -> list[Tensor]:
    """σ(x Θᵀ + β) of each layer in ``dtype``; ``fused`` selects the kernel."""
    if fused:
        return by_triton.forward(layers, relu, dtype)
    ys = []
    for layer in layers:
        x, weight, bias = _rounded(layer, dtype)
        missing = -x.shape[-1] % 8
        if missing and x.is_cuda:
            # cuBLAS is several times slower on rows that are not a multiple of 16 bytes
            x, weight = functional.pad(x, (0, missing)), functional.pad(weight, (0, missing))
        y = functional.linear(x, weight, bias)
        ys.append(y.relu_() if relu else y)
    return ys


def backward(
    layers: Sequence[Linear], ys: Sequence[Tensor | None], grads: Sequence[Tensor], dtype: torch.dtype, fused: bool,
    wants: Sequence[Sequence[bool]],
) -> list[Gradients]:  # fmt: skip
    """Gradients at the operands of each layer in their own precision; None for those not wanted.

    ``ys`` are the outputs of a ReLU, else None.
    """
    if fused:
        return by_triton.backward(layers, ys, grads, dtype, wants)
    found = []
    for layer, y, grad, want in zip(layers, ys, grads, wants, strict=True):
        x, weight, _ = _rounded(layer, dtype)
        rows = grad.to(dtype).reshape(-1, grad.shape[-1])
        if y is not None:
            rows = torch.ops.aten.threshold_backward(rows, y.reshape(rows.shape), 0)
        d_x = (rows @ weight).view(x.shape).to(layer.x.dtype) if want[0] else None
        d_weight = (rows.T @ x.reshape(-1, x.shape[-1])).to(layer.weight.dtype) if want[1] else None
        d_bias = rows.sum(0).to(layer.bias.dtype) if want[2] and layer.bias is not None else None
        found.append((d_x, d_weight, d_bias))
    return found


def _rounded(layer: Linear, dtype: torch.dtype) -> Linear:
    return Linear._make([None if t is None else t.to(dtype) for t in layer])
