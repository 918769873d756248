"""Gradients that can be differentiated again.

Backward passes written by hand, and kernels, are nothing that autograd can follow. Where a caller wants a graph of the
gradients (``create_graph=True``: forces from energies, gradient penalties), an operation is computed once more in plain
operations, and autograd differentiates those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def gradients(
    plain: Callable[[Sequence[Tensor]], Sequence[Tensor]], operands: Sequence[Tensor], wants: Sequence[bool],
    ups: Sequence[Tensor | None],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients at the operands, None for those not wanted, with their graph.

    Args:
        plain: The operation, by operations that autograd knows.
        operands: What it was called with, with their own graph.
        ups: The gradient at each result, None for zero.
    """
    with torch.enable_grad():
        # Gradients at one operand must not go on through another that depends on it.
        inputs = [x.view_as(x) if want else x for x, want in zip(operands, wants, strict=True)]
        pairs = zip(plain(inputs), ups, strict=True)
        live = [(y, up.to(y.dtype)) for y, up in pairs if up is not None and y.requires_grad]
        wanted = [x for x, want in zip(inputs, wants, strict=True) if want]
        if not live or not wanted:
            return [None] * len(operands)
        found = iter(
            torch.autograd.grad(
                [y for y, _ in live], wanted, [up for _, up in live], create_graph=True, allow_unused=True
            )
        )
    return [next(found) if want else None for want in wants]
