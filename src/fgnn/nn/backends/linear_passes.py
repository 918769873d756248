"""One or two small linear layers, forward and backward, without autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fgnn.nn.backends.triton import linear as by_triton
from fgnn.nn.backends.triton.linear import Layers


def forward(layers: Layers, relu: bool, dtype: torch.dtype, fused: bool) -> list[Tensor]:
    """σ(x Θᵀ + β) in ``dtype`` and, for a second layer, also x₂ Θ₂ᵀ; ``fused`` selects the kernel."""
    if fused:
        return list(by_triton.forward(_contiguous(layers), relu, dtype))
    x, weight, bias, x2, weight2 = _rounded(layers, dtype)
    missing = -x.shape[-1] % 8
    if missing and x.is_cuda and x2 is None:
        # cuBLAS is several times slower on rows that are not a multiple of 16 bytes
        x, weight = functional.pad(x, (0, missing)), functional.pad(weight, (0, missing))
    out = functional.linear(x, weight, bias)
    out = out.relu_() if relu else out
    return [out] if x2 is None or weight2 is None else [out, functional.linear(x2, weight2)]


def backward(
    layers: Layers, y: Tensor | None, grads: Sequence[Tensor], dtype: torch.dtype, fused: bool, wants: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients at the operands in their own precision; None for those not wanted. ``y`` is the output of a ReLU."""
    if fused:
        return list(by_triton.backward(_contiguous(layers), y, tuple(grads), dtype, tuple(wants)))
    half = _rounded(layers, dtype)
    found: list[Tensor | None] = [None] * 5
    for grad, at, t, weight in ((grads[0], 0, half.x, half.weight), (grads[-1], 3, half.x2, half.weight2)):
        if t is None or weight is None:
            continue
        rows = grad.reshape(-1, grad.shape[-1])
        if at == 0 and y is not None:
            rows = torch.ops.aten.threshold_backward(rows, y.reshape(rows.shape), 0)
        if wants[at]:
            found[at] = (rows @ weight).view(t.shape)
        if wants[at + 1]:
            found[at + 1] = rows.T @ t.reshape(-1, t.shape[-1])
        if at == 0 and wants[2]:
            found[2] = rows.sum(0)
    if half is layers:
        return found
    return [None if g is None or t is None else g.to(t.dtype) for g, t in zip(found, layers, strict=True)]


def _rounded(layers: Layers, dtype: torch.dtype) -> Layers:
    if all(t is None or t.dtype == dtype for t in layers):
        return layers
    return Layers._make(None if t is None else t.to(dtype) for t in layers)


def _contiguous(layers: Layers) -> Layers:
    return layers._replace(x=layers.x.contiguous(), x2=None if layers.x2 is None else layers.x2.contiguous())
