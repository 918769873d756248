"""Exact labels of chains with window budgets, fast enough to label what a GPU trains on."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.data import ChainMAP
from fgnn.pgm import ModelBatch


def can_label(data: object) -> bool:
    """Whether `window_labels` applies: chains with windows of 3 to 12."""
    return isinstance(data, ChainMAP) and 3 <= data.window <= min(12, data.length)


@torch.no_grad()
def window_labels(batch: ModelBatch, window: int) -> Tensor:
    r"""The optimum of each chain, (B, N), by dynamic programming over the last w - 1 states.

    With s the last w - 1 bits, h the oldest of them and x the new one,
    :math:`V'(s \setminus h, x) = \max_h V(s) + \theta(x_{t-1}, x) + \theta_t(x)` where the window's count allows it.
    Nothing is read back to the host, so that the device's queue never runs dry. Sums are in the batch's own type:
    for labels to be trusted to the last rounding, `ChainMAP.labels` works in float64.
    """
    count, n, _ = batch.unary.shape
    half, device = 1 << (window - 2), batch.device
    p = torch.arange(half, device=device)
    ones = sum(((p >> b) & 1 for b in range(window - 2)), torch.zeros_like(p))
    # how many ones a window has: the oldest bit, those between, the new one.  # shape: (2, half, 2)
    bit = torch.arange(2, device=device)
    total = bit[:, None, None] + ones[:, None] + bit
    pair = batch.tables[0].values[:, :, p & 1]  # shape: (B, N-1, half, 2); the previous state is the last bit of p
    if batch.tables[0].values.stride(0) == 0:
        pair = pair[:1]
    most = batch.budgets[0].at_most
    value = batch.unary.new_full((count, 2 * half), -torch.inf)
    value[:, 0] = 0.0
    choices = torch.empty(n, count, 2 * half, dtype=torch.bool, device=device)
    for t in range(n):
        step = batch.unary[:, t, None, None, :]  # shape: (B, 1, 1, 2)
        if t:
            step = step + pair[:, None, t - 1]
        candidate = value.view(count, 2, half, 1) + step
        if t >= window - 1:
            broken = total > most[:, t - window + 1, None, None, None]
            candidate = candidate.masked_fill(broken, -torch.inf)
        else:
            candidate = candidate.expand(count, 2, half, 2)
        old, new = candidate.unbind(1)
        torch.gt(new.flatten(1), old.flatten(1), out=choices[t])
        value = torch.maximum(old, new).reshape(count, 2 * half)
    state = value.argmax(1)
    found = torch.empty(n, count, dtype=torch.int64, device=device)
    for t in range(n - 1, -1, -1):
        found[t] = state & 1
        oldest = choices[t].gather(1, state[:, None]).squeeze(1)
        state = (state >> 1) | (oldest.long() << (window - 2))
    return found.T.contiguous()
