"""The linear layer on node and edge features: one kernel in half precision on a GPU, torch's elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fgnn.nn.backends.choice import choose_backend, working_dtype
from fgnn.nn.backends.linear_operator import linear_compiled
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
    fused = has_kernel(x, weight)
    if compiled():
        return linear_compiled(Layers(x, weight, bias), relu, working_dtype(x), fused)[0]
    if fused:
        return linear_fused(Layers(x, weight, bias), relu, working_dtype(x))[0]
    y = nn.functional.linear(x, weight, bias)
    return y.relu() if relu else y


def linear_parts(x: Tensor, weight: Tensor, bias: Tensor | None, x2: Tensor, weight2: Tensor) -> tuple[Tensor, Tensor]:
    """Two linear layers of the same output width, the second without bias: x Θᵀ + β and x₂ Θ₂ᵀ."""
    fused = has_kernel(x, weight) and has_kernel(x2, weight2)
    if compiled():
        a, b = linear_compiled(Layers(x, weight, bias, x2, weight2), False, working_dtype(x), fused)
        return a, b
    if fused:
        a, b = linear_fused(Layers(x, weight, bias, x2, weight2), False, working_dtype(x))
        return a, b
    return linear(x, weight, bias), linear(x2, weight2)


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether to use the kernel: in half precision, where converting the operands costs more than the products."""
    dtype = working_dtype(x)
    if dtype not in _HALF or max(weight.shape) > WIDEST or not x.numel() or torch.compiler.is_exporting():
        return False
    return choose_backend(device=x.device, dtype=dtype) == "triton"


def compiled() -> bool:
    """Whether a call is traced by ``torch.compile``, not by ``torch.export``."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


class EdgeNet(nn.Sequential):
    """Linear layers with ReLU between them, on edge features: they use a GPU's tensor cores also for few inputs."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        for k, (i, o) in enumerate(pairwise(widths)):
            if k:
                self.append(nn.ReLU())
            self.append(nn.Linear(i, o))

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """Apply all layers; with ``relu``, also after the last.  # shape: (..., widths[0]) -> (..., widths[-1])"""
        layers = [layer for layer in self if isinstance(layer, nn.Linear)]
        if not relu and len(layers) == 2 and not torch.compiler.is_compiling() and has_kernel(x, layers[0].weight):
            from fgnn.nn.backends.triton.edge_mlp import edge_mlp, fits

            first, last = layers
            if fits(first, last, x):
                return edge_mlp(first, last, x)
        for k, layer in enumerate(layers):
            x = _edge_linear(layer, x, relu or k + 1 < len(layers))
        return x


def _edge_linear(layer: nn.Linear, x: Tensor, relu: bool) -> Tensor:
    missing = -layer.in_features % 8
    if not missing or not x.is_cuda or compiled() or has_kernel(x, layer.weight):
        return linear(x, layer.weight, layer.bias, relu=relu)
    # cuBLAS is several times slower on rows that are not a multiple of 16 bytes
    x = x.to(working_dtype(x))
    pad = nn.functional.pad
    y = nn.functional.linear(pad(x, (0, missing)), pad(layer.weight, (0, missing)), layer.bias)
    return y.relu() if relu else y
