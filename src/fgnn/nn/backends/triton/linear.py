"""A small linear layer in half precision, or two at once: one launch forward, two backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.triton.tile_sizes import block, cdiv, dtype_of, precision_of, processors, roomy

# One program holds Θ up to this width; wider layers compute enough for the libraries.
WIDEST = 128


class Layers(NamedTuple):
    """x (..., k), Θ (m, k), β (m,) or None; and maybe a second layer without bias, x₂ (..., k₂), Θ₂ (m, k₂)."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    x2: Tensor | None = None
    weight2: Tensor | None = None


def forward(layers: Layers, relu: bool, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The outputs of one or two layers whose inputs are contiguous; not differentiable."""
    from fgnn.nn.backends.triton.linear_kernels import linear_forward

    x, weight, bias, x2, weight2 = layers
    m = weight.shape[0]
    out = [t.new_empty((*t.shape[:-1], m), dtype=dtype) for t in (x, x2) if t is not None]
    rows = [y.numel() // m for y in out]
    lines = _lines(layers)
    tiles = sum(cdiv(count, lines) for count in rows)
    second = (None, None, None, 0) if x2 is None or weight2 is None else (x2, weight2.contiguous(), out[1], rows[1])
    if tiles:
        linear_forward[(tiles,)](
            x, weight.contiguous(), bias, out[0], rows[0], *second, **_sizes(layers, lines, dtype), RELU=relu,
            num_warps=4, num_stages=1,
        )  # fmt: skip
    return tuple(out)


def backward(
    layers: Layers, y: Tensor | None, grads: tuple[Tensor, ...], dtype: torch.dtype, wants: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients at the operands; None for those not wanted, or absent."""
    from fgnn.nn.backends.triton.linear_kernels import linear_backward

    x, weight, bias, x2, weight2 = layers
    m, k = weight.shape
    k2 = 0 if weight2 is None else weight2.shape[1]
    grad, *more = (g.reshape(-1, m) for g in grads)
    rows, rows2 = grad.shape[0], more[0].shape[0] if more else 0
    need_weight = wants[1] or wants[2] or wants[4]
    d_x = torch.empty_like(x) if wants[0] else None
    d_x2 = torch.empty_like(x2) if wants[3] and x2 is not None else None
    lines = _lines(layers)
    shares = max(1, min(cdiv(max(rows, rows2), lines), (1 if k2 else 2) * processors(grad.device)))
    ends = [m * k, m * k + (0 if bias is None else m)]
    partial = grad.new_empty((shares, ends[1] + m * k2), dtype=torch.float32) if need_weight else None
    second = (x2, None if weight2 is None else weight2.contiguous(), more[0] if more else None, d_x2, rows2)
    linear_backward[(shares * (2 if k2 else 1),)](
        # the compiler needs a pointer even if nothing is written through it
        x, weight.contiguous(), y, grad, d_x, grad if partial is None else partial, rows, *grad.stride(),
        *second, *(more[0].stride() if more else (0, 0)), shares, **_sizes(layers, lines, dtype),
        RELU=y is not None, NEED_X=d_x is not None, NEED_X2=d_x2 is not None, NEED_WEIGHT=need_weight,
        num_warps=8 if lines < 128 else 4, num_stages=2 if roomy(grad.device) else 1,
    )  # fmt: skip
    if partial is None:
        return d_x, None, None, d_x2, None
    total = partial.sum(0)
    d_weight = total[: ends[0]].view(m, k).to(weight.dtype)
    d_bias = None if bias is None else total[ends[0] : ends[1]].to(bias.dtype)
    d_weight2 = None if weight2 is None else total[ends[1] :].view(m, k2).to(weight2.dtype)
    return d_x, d_weight, d_bias, d_x2, d_weight2


def _sizes(layers: Layers, lines: int, dtype: torch.dtype) -> dict[str, Any]:
    m, k = layers.weight.shape
    k2 = 0 if layers.weight2 is None else layers.weight2.shape[1]
    return {
        "K": k,
        "K2": k2,
        "M": m,
        "BR": lines,
        "BK": block(k, WIDEST),
        "BK2": block(k2, WIDEST),
        "BM": block(m, WIDEST),
        "HAS_BIAS": layers.bias is not None,
        "CT": dtype_of(dtype),
        "PREC": precision_of(dtype),
    }


def _lines(layers: Layers) -> int:
    """Rows of a tile: fewer if Θ takes many registers, more if a row is short."""
    m, k = layers.weight.shape
    inner = k if layers.weight2 is None else max(k, layers.weight2.shape[1])
    size = block(m, WIDEST) * block(inner, WIDEST)
    return 64 if size > 64 * 64 else 128 if size > 32 * 32 else 256
