"""The conditional scores of every variable given all others, as pseudo-likelihoods and local moves need them."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.pgm.batch import ModelBatch


def conditionals(
    batch: ModelBatch, x: Tensor, *, keep: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    r"""The score of each state of each variable, up to a constant of the variable, with the other variables at ``x``,

    .. math:: s_i(k) = \theta_i(k) + \sum_{c \ni i} \theta_c(x_c \text{ with } x_i = k)

    It is differentiable in the potentials. A budget forbids the states that violate it.

    Args:
        batch: Models of one structure.
        x: An assignment of each model, (B, N).
        keep: Probability that a table counts for a variable, drawn for every model, table and axis.
        generator: Of these draws.

    Returns:
        s, shape (B, N, K), ``-inf`` in padded and forbidden states.
    """
    if x.shape != batch.unary.shape[:2]:
        raise ValueError(f"Expected assignments of shape {tuple(batch.unary.shape[:2])} (got {tuple(x.shape)})")
    scores = batch.unary
    models, _, most = scores.shape
    for t in batch.tables:
        states = x[:, t.scopes]  # shape: (B, C, A)
        strides = [1] * len(t.shape)
        for axis in reversed(range(len(t.shape) - 1)):
            strides[axis] = strides[axis + 1] * t.shape[axis + 1]
        cell = (states * torch.tensor(strides, device=x.device)).sum(2)  # shape: (B, C)
        flat = t.values.flatten(2)
        for axis, k in enumerate(t.shape):
            others = cell - states[..., axis] * strides[axis]
            cells = others[..., None] + strides[axis] * torch.arange(k, device=x.device)  # shape: (B, C, k)
            sent = flat.gather(2, cells)
            if keep < 1:
                dropped = torch.rand(sent.shape[:2], device=x.device, generator=generator) >= keep
                sent = sent.masked_fill(dropped[..., None], 0.0)
            sent = torch.nn.functional.pad(sent, (0, most - k))
            scores = scores.index_add(1, t.scopes[:, axis], sent)
    for u in batch.budgets:
        ones = x[:, u.scopes]  # shape: (B, C, n)
        other_ones = ones.sum(2, keepdim=True) - ones
        for state in (0, 1):
            count = other_ones + state
            violated = (count < u.at_least[..., None]) | (count > u.at_most[..., None])
            forbidden = torch.zeros(models, batch.num_variables, dtype=torch.int64, device=x.device)
            forbidden.index_add_(1, u.scopes.flatten(), violated.flatten(1).long())
            at_state = torch.arange(most, device=x.device) == state
            scores = scores.masked_fill((forbidden > 0)[..., None] & at_state, -torch.inf)
    return scores.masked_fill(~batch.state_mask, -torch.inf)
