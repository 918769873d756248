"""The linear layer on node and edge features: one kernel in half precision on a GPU, torch's elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.nn.backends.choice import choose_backend
from fgnn.nn.backends.triton.linear import WIDEST, Layers, linear_fused

_HALF = (torch.bfloat16, torch.float16)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """σ(x Θᵀ + β), where σ is ReLU or the identity.

    Args:
        x: (..., k).
        weight: Θ (o, k).
        bias: β (o,).
        relu: Whether σ is ReLU.

    Under autocast the operands are rounded to its dtype, which the result has too.
    """
    if has_kernel(x, weight):
        return linear_fused(Layers(x, weight, bias), relu, _dtype(x))[0]
    y = nn.functional.linear(x, weight, bias)
    return y.relu() if relu else y


def linear_parts(x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor, weight2: Tensor) -> tuple[Tensor, Tensor]:
    """Two linear layers of the same output width, the second without bias: x Θᵀ + β and x₂ Θ₂ᵀ."""
    if has_kernel(x, weight) and has_kernel(x2, weight2):
        a, b = linear_fused(Layers(x, weight, bias, x2, weight2), False, _dtype(x))
        return a, b
    return linear(x, weight, bias), linear(x2, weight2)


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether to use the kernel: in half precision, where converting the operands costs more than the products."""
    dtype = _dtype(x)
    if dtype not in _HALF or max(weight.shape) > WIDEST or not x.numel() or torch.compiler.is_compiling():
        return False
    return choose_backend(device=x.device, dtype=dtype) == "triton"


def _dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
