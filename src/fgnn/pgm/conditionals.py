"""The conditional scores of every variable given all others, as pseudo-likelihoods and local moves need them."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.pgm.batch import ModelBatch
from fgnn.pgm.group_batches import CountedBatch, TableBatch


def conditionals(
    batch: ModelBatch, x: Tensor, *, keep: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    r"""The score of each state of each variable, up to a constant of the variable, with the other variables at ``x``,

    .. math:: s_i(k) = \theta_i(k) + \sum_{c \ni i} \theta_c(x_c \text{ with } x_i = k)

    It is differentiable in the potentials. A constraint forbids the states that violate it.

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
    most = scores.shape[2]
    for t in batch.tables:
        states = x[:, t.scopes]  # shape: (B, C, A)
        for axis, k in enumerate(t.shape):
            rows = torch.zeros_like(states[..., 0])  # the joint state of the other axes, shape: (B, C)
            for other, size in enumerate(t.shape):
                rows = rows if other == axis else rows * size + states[..., other]
            sent = _lines(t, axis, rows)  # shape: (B, C, k)
            if keep < 1:
                dropped = torch.rand(sent.shape[:2], device=x.device, generator=generator) >= keep
                sent = sent.masked_fill(dropped[..., None], 0.0)
            sent = torch.nn.functional.pad(sent, (0, most - k))
            scores = scores.index_add(1, t.scopes[:, axis], sent)
    for group in batch.counted:
        scores = scores.index_add(1, group.scopes.flatten(), _by_sum(group, x, scores).flatten(1, 2))
    for f in batch.structured:
        if f.counter is not None:
            continue
        # With every other variable certain, a message is the potential of each state.
        theta, states = (
            f.potentials(batch.dtype).permute(2, 1, 0),
            x[:, f.scopes].permute(2, 1, 0),
        )  # (S, C, B), (n, C, B)
        certain = []
        for row, k in zip(states, f.shape, strict=True):
            other = torch.arange(k, device=x.device).view(-1, 1, 1) != row
            certain.append(torch.zeros(other.shape, dtype=batch.dtype, device=x.device).masked_fill(other, -torch.inf))
        for axis, sent in enumerate(f.kind.messages(theta, certain, total=False)):
            padded = torch.nn.functional.pad(sent.permute(2, 1, 0), (0, most - sent.shape[0]))
            scores = scores.index_add(1, f.scopes[:, axis], padded)
    return scores.masked_fill(~batch.state_mask, -torch.inf)


def _by_sum(group: CountedBatch, x: Tensor, scores: Tensor) -> Tensor:
    """The log-potential of the sum with each variable in each state and the others at ``x``.  # shape: (B, C, n, K)"""
    counter, values = group.counter, group.by_sum(scores.dtype)  # shape: (B or 1, C, T)
    assert counter is not None
    most = scores.shape[2]
    # The states beyond a variable's own are masked at the end.
    weights = torch.from_numpy(counter.padded(most)).to(x.device)  # shape: (n, K)
    states = x[:, group.scopes]  # shape: (B, C, n)
    own = weights.expand(*states.shape, most).gather(3, states[..., None]).squeeze(3)
    sums = (own.sum(2, keepdim=True) - own)[..., None] + weights
    sums = sums % counter.modulus if counter.modulus else sums
    return values.expand(len(x), -1, -1).gather(2, sums.flatten(2)).view(sums.shape)


def _lines(table: TableBatch, axis: int, rows: Tensor) -> Tensor:
    """The entries of each table along an axis, (B, C, k), at the joint states ``rows`` (B, C) of the other axes."""
    values = table.distinct("values").movedim(2 + axis, -1)  # shape: (B or 1, C, ..., k)
    lines = values.flatten(2, -2) if values.dim() > 3 else values[:, :, None]  # shape: (B or 1, C, R, k)
    models, factors, count, k = lines.shape
    first = torch.arange(factors, device=rows.device) * count
    if models > 1:
        first = first + torch.arange(models, device=rows.device)[:, None] * (factors * count)
    # Rows of one matrix: where models share their tables, the gradient is added up without a copy for each model.
    return torch.nn.functional.embedding(first + rows, lines.reshape(-1, k))
