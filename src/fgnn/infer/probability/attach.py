"""Attach the gradient of log Z, which is the marginals, to a value computed without one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fgnn.infer.probability.result import Beliefs
from fgnn.pgm import ModelBatch


def potentials_of(batch: ModelBatch) -> list[Tensor]:
    """All tensors that log Z depends on: the constants, the unaries and the tables, each stored once if shared."""
    return [batch.constant, batch.unary, *(t.distinct("values") for t in batch.tables)]


def structured_numbers(batch: ModelBatch) -> list[Tensor]:
    """The numbers of structured factors."""
    return [tensor for f in batch.structured for tensor in f.numbers.values()]


def with_gradient(batch: ModelBatch, beliefs: Beliefs) -> Tensor:
    r"""log Z as a function of the potentials, with :math:`\partial \log Z / \partial \theta_c(x_c) = p(x_c)`.

    For Bethe's approximation this holds at a fixed point of sum-product, where its derivative by the messages is zero.
    ``beliefs`` must have the marginals of tables.
    """
    if any(tensor.requires_grad for tensor in structured_numbers(batch)):
        raise ValueError("Expected the method exact for gradients of structured factors (got an approximation)")
    result: Tensor = _Attached.apply(beliefs, *potentials_of(batch))  # type: ignore[no-untyped-call]
    return result


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, beliefs: Beliefs, *potentials: Tensor) -> Tensor:
        ctx.probabilities = [torch.ones_like(beliefs.log_z), beliefs.unary, *(beliefs.tables or ())]
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
