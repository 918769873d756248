"""Small linear layers in half precision, up to four at once: one launch forward, and one and a sum backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.triton.tile_sizes import block, cdiv, dtype_of, precision_of, processors, roomy
from fgnn.runtime.kernel_launch import launch

# One program holds Θ up to this width. Wider layers compute enough for the libraries, unless there are so few rows that
# the launches of a cast, a product, a bias and a ReLU take longer.
_WIDEST, _WIDEST_OF_FEW = 128, 256
_FEW = 1 << 16
_MOST_ENTRIES = 1 << 15  # of Θ: its gradient stays in registers
_JOBS = 4  # layers of a launch


class Linear(NamedTuple):
    """x (..., k), Θ (m, k), and β (m,) or None."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel suits a layer of this size."""
    width, entries = max(weight.shape), x.numel()
    if width <= _WIDEST:
        return entries > 0
    if torch.compiler.is_compiling():  # it would compile again for more rows
        return False
    whole = block(weight.shape[0], 1 << 20) * block(weight.shape[1], 1 << 20)
    few = 0 < entries <= _FEW * x.shape[-1]
    return few and width <= _WIDEST_OF_FEW and whole <= _MOST_ENTRIES and roomy(x.device)


def forward(layers: Sequence[Linear], relu: bool, dtype: torch.dtype) -> list[Tensor]:
    """The outputs; not differentiable."""
    out: list[Tensor] = []
    for part in _launches(layers):
        out += _forward(layers[part], relu, dtype)
    return out


def backward(
    layers: Sequence[Linear], ys: Sequence[Tensor | None], grads: Sequence[Tensor], dtype: torch.dtype,
    wants: Sequence[Sequence[bool]],
) -> list[Gradients]:  # fmt: skip
    """Gradients at the operands of each layer; None for those not wanted, or absent."""
    found: list[Gradients] = []
    for part in _launches(layers):
        found += _backward(layers[part], ys[part], grads[part], dtype, wants[part])
    return found


def _launches(layers: Sequence[Linear]) -> Iterator[slice]:
    """Layers that one launch serves: up to four in a row, of the same output width."""
    start = 0
    for k, layer in enumerate(layers):
        if k - start == _JOBS or layer.weight.shape[0] != layers[start].weight.shape[0]:
            yield slice(start, k)
            start = k
    if layers:
        yield slice(start, len(layers))


def _forward(layers: Sequence[Linear], relu: bool, dtype: torch.dtype) -> list[Tensor]:
    from fgnn.nn.backends.triton.linear_kernels import linear_forward

    m, device = layers[0].weight.shape[0], layers[0].x.device
    ks = tuple([layer.weight.shape[1] for layer in layers])
    lines, options = _forward_options(m, ks, relu, dtype, precision_of(dtype), roomy(device))
    out, args, most = [], [], 0
    for x, weight, bias in layers:
        y = x.new_empty((*x.shape[:-1], m), dtype=dtype)
        rows = y.numel() // m
        most = max(most, rows)
        out.append(y)
        args += [x.contiguous(), weight.contiguous(), bias, y, rows]
    # narrow tiles leave room for four programs on a processor
    beside = 4 if max(m, *ks) <= _WIDEST else 2
    shares = min(cdiv(most, lines), beside * processors(device) // len(layers))
    if shares:
        args += [*[None, None, None, None, 0] * (_JOBS - len(layers)), shares]
        launch(linear_forward, (shares * len(layers),), args, options)
    return out


def _backward(
    layers: Sequence[Linear], ys: Sequence[Tensor | None], grads: Sequence[Tensor], dtype: torch.dtype,
    wants: Sequence[Sequence[bool]],
) -> list[Gradients]:  # fmt: skip
    from fgnn.nn.backends.triton.linear_kernels import linear_backward

    m, device = layers[0].weight.shape[0], grads[0].device
    ks = tuple([layer.weight.shape[1] for layer in layers])
    need_weight = any(want[1] or want[2] for want in wants)
    biases = sum([(layer.bias is not None) << j for j, layer in enumerate(layers)])
    lines, sizes, options = _backward_options(m, ks, biases, need_weight, dtype, precision_of(dtype), roomy(device))
    args: list[Any] = []
    d_xs, most = [], 0
    for (x, weight, _), y, grad, want in zip(layers, ys, grads, wants, strict=True):
        rows = grad.numel() // m
        most = max(most, rows)
        d_x = torch.empty_like(x, memory_format=torch.contiguous_format) if want[0] else None
        d_xs.append(d_x)
        args += [x.contiguous(), weight.contiguous(), y, grad.contiguous(), d_x, rows]
    shares = max(1, min(cdiv(most, lines), 2 * processors(device) // len(layers)))
    # the compiler needs a pointer even if nothing is written through it
    partial = grads[0].new_empty((shares, sum(sizes)), dtype=torch.float32) if need_weight else grads[0]
    args += [*[None, None, None, None, None, 0] * (_JOBS - len(layers)), partial, shares, sum(sizes)]
    launch(linear_backward, (shares * len(layers),), args, options)
    if not need_weight:
        return [(d_x, None, None) for d_x in d_xs]
    sums = iter(partial.sum(0).split(sizes))
    found: list[Gradients] = []
    for (_, weight, bias), d_x in zip(layers, d_xs, strict=True):
        d_weight = next(sums).view(weight.shape).to(weight.dtype)
        found.append((d_x, d_weight, None if bias is None else next(sums).to(bias.dtype)))
    return found


@cache
def _forward_options(
    m: int, ks: tuple[int, ...], relu: bool, dtype: torch.dtype, precision: str, wide: bool
) -> tuple[int, dict[str, Any]]:
    """Rows of a tile, and the kernel's compile-time arguments."""
    lines = _lines(m, max(ks))
    return lines, {
        **_widths(m, ks, lines, dtype, precision),
        "RELU": relu,
        "num_warps": 4,
        "num_stages": 2 if wide and lines == 64 else 1,
    }


@cache
def _backward_options(
    m: int, ks: tuple[int, ...], biases: int, need_weight: bool, dtype: torch.dtype, precision: str, wide: bool
) -> tuple[int, list[int], dict[str, Any]]:
    """Rows of a tile, the entries of each sum, and the kernel's compile-time arguments."""
    lines = _lines(m, max(ks))
    # Pipelining takes longer than it saves for rows of a few bytes, and if Θ and its gradient take most registers.
    stages = 3 if wide and lines == 64 and max(m, *ks) <= 64 else 1
    sizes: list[int] = []
    begins = list(accumulate((m * (k + (biases >> j & 1)) for j, k in enumerate(ks)), initial=0))
    for j, k in enumerate(ks):
        sizes += [m * k, *[m] * (biases >> j & 1)]
    options = {
        **_widths(m, ks, lines, dtype, precision),
        **{f"AT{j}": begins[j] if j < len(ks) else 0 for j in range(1, _JOBS)},
        "BIASES": biases,
        "NEED_WEIGHT": need_weight,
        "num_warps": 4 if max(m, *ks) <= _WIDEST else 8,
        "num_stages": stages,
    }
    return lines, sizes, options


def _widths(m: int, ks: tuple[int, ...], lines: int, dtype: torch.dtype, precision: str) -> dict[str, Any]:
    padded = (*ks, *[0] * (_JOBS - len(ks)))
    return {
        **{f"K{j}": k for j, k in enumerate(padded)},
        **{f"BK{j}": block(k, _WIDEST_OF_FEW) for j, k in enumerate(padded)},
        "M": m,
        "BR": lines,
        "BM": block(m, _WIDEST_OF_FEW),
        "CT": dtype_of(dtype),
        "PREC": precision,
    }


def _lines(m: int, k: int) -> int:
    """Rows of a tile: more if a row is short."""
    return 256 if block(m, _WIDEST_OF_FEW) * block(k, _WIDEST_OF_FEW) <= 32 * 32 else 64
