"""Attach the gradient of log Z, which is the marginals, to a value computed without one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fgnn.infer.probability.result import Beliefs
from fgnn.pgm import ModelBatch


def potentials_of(batch: ModelBatch) -> list[Tensor]:
    """All that log Z depends on: constants, unaries, tables, structured log-potentials; each stored once if shared."""
    structured = [f.potentials(batch.dtype) for f in batch.structured]
    return [batch.constant, batch.unary, *(t.distinct("values") for t in batch.tables), *structured]


def needs_gradient(batch: ModelBatch) -> bool:
    """Whether log Z is to be differentiated."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in potentials_of(batch))


def with_gradient(batch: ModelBatch, beliefs: Beliefs) -> Tensor:
    r"""log Z as a function of the potentials, with :math:`\partial \log Z / \partial \theta_c(x_c) = p(x_c)`.

    For Bethe's approximation this holds at a fixed point of sum-product, where its derivative by the messages is zero.
    ``beliefs`` must have the marginals of tables, and of structured factors if those have gradients.
    """
    if beliefs.structured is None and any(f.potentials(batch.dtype).requires_grad for f in batch.structured):
        raise ValueError(
            f"Expected the method exact or sum-product for gradients of structured factors (got {beliefs.method})"
        )
    potentials = potentials_of(batch)
    if beliefs.structured is None:
        potentials = potentials[: len(potentials) - len(batch.structured)]
    result: Tensor = _Attached.apply(beliefs, *potentials)  # type: ignore[no-untyped-call]
    return result


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, beliefs: Beliefs, *potentials: Tensor) -> Tensor:
        factors = (*(beliefs.tables or ()), *(beliefs.structured or ()))
        ctx.probabilities = [torch.ones_like(beliefs.log_z), beliefs.unary, *factors]
        ctx.like = [(p.shape, p.dtype) for p in potentials]
        return beliefs.log_z.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [
            (p * weight.view(-1, *(1 for _ in p.shape[1:]))).sum_to_size(shape).to(dtype)
            for p, (shape, dtype) in zip(ctx.probabilities, ctx.like, strict=True)
        ]
        return None, *gradients
