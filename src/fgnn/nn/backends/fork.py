"""Tensors that are read twice, in compiled code: their gradients are added by one operator.

Generated code for each sum would take two seconds to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.linear import compiled
from fgnn.nn.backends.steps import recording


def fork(xs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Every tensor twice."""
    if not compiled() or recording() or not torch.is_grad_enabled():
        return list(xs), list(xs)
    both = _Fork.apply(*xs)  # type: ignore[no-untyped-call]
    return list(both[: len(xs)]), list(both[len(xs) :])


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *xs: Tensor) -> tuple[Tensor, ...]:
        return (*(x.view_as(x) for x in xs), *(x.view_as(x) for x in xs))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        half = len(grads) // 2
        return tuple(_sums(list(grads[:half]), list(grads[half:])))


@torch.library.custom_op("fgnn::sums", mutates_args=())
def _sums(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
    return [(x + y).contiguous() for x, y in zip(xs, ys, strict=True)]


@_sums.register_fake
def _(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
    return [x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype)) for x, y in zip(xs, ys, strict=True)]
