"""The linear layer on node and edge features: one kernel in half precision on a GPU, torch's elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fgnn.graph import exporting, tracing, transformed
from fgnn.nn.backends.choice import choose_backend, working_dtype
from fgnn.nn.backends.dense import DenseCall, dense, encode, sizes
from fgnn.nn.backends.steps import Step, take
from fgnn.nn.backends.triton.linear import fits

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
    return linears([x], [weight], None if bias is None else [bias], relu=relu)[0]


def linears(
    xs: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor] | None, *, relu: bool,
    residuals: Sequence[Tensor] | None = None,
) -> list[Tensor]:  # fmt: skip
    """σ(x Θᵀ + β) + r for several kinds of nodes, in one operation where there is one."""
    if residuals is not None and any(r.shape[:-1] != x.shape[:-1] for r, x in zip(residuals, xs, strict=True)):
        ys = linears(xs, weights, biases, relu=relu)
        return [r + y for r, y in zip(residuals, ys, strict=True)]
    fused, traced = have_kernels(xs[0]), compiled()
    if fused:
        fitting = [fits(x, weight) for x, weight in zip(xs, weights, strict=True)]
        fused = all(fitting)
        if any(fitting) and not (fused or traced or tracing()):
            return [
                linears(
                    [xs[k]], [weights[k]], biases and [biases[k]], relu=relu, residuals=residuals and [residuals[k]]
                )[0]
                for k in range(len(xs))
            ]  # fmt: skip
    if traced or (fused and not tracing()):
        call = DenseCall(len(xs), biases is not None, residuals is not None, relu, working_dtype(xs[0]), fused)
        features, parameters = [*xs, *(residuals or ())], [*weights, *(biases or ())]
        if not traced:
            return dense(call, features + parameters)
        step = Step("dense", encode(call), (), 1.0, features, parameters)
        return take(step, sizes(call, features + parameters))
    ys = []
    for k, (x, weight) in enumerate(zip(xs, weights, strict=True)):
        y = nn.functional.linear(x, weight, None if biases is None else biases[k])
        y = y.relu() if relu else y
        ys.append(y if residuals is None else residuals[k] + y)
    return ys


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether to use the kernel for a layer."""
    return have_kernels(x) and fits(x, weight)


def have_kernels(x: Tensor) -> bool:
    """Whether kernels serve small layers: in half precision, where converting the operands costs more than products."""
    dtype = working_dtype(x)
    if dtype not in _HALF or exporting():
        return False
    return choose_backend(device=x.device, dtype=dtype) == "triton"


def compiled() -> bool:
    """Whether ``torch.compile`` traces a call, ``torch.export`` does not, and no transform of ``torch.func`` is on."""
    return torch.compiler.is_compiling() and not exporting() and not transformed()
