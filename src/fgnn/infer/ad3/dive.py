"""A first good assignment for the search: fix what the relaxation is surest of, relax again, and so on down."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from fgnn.infer.ad3.layout import Layout, fold
from fgnn.infer.ad3.numbers import build_numbers
from fgnn.infer.ad3.relax import Limits, Warm, relax
from fgnn.infer.local_search.decode import decode
from fgnn.pgm import ModelBatch

_STEPS = 8
_SURE = 0.99


def marginals_of(layout: Layout, p: Tensor, like: Tensor) -> Tensor:
    """Rows (V, W) as marginals (W, N, K), shaped like another tensor."""
    out = p.new_zeros(p.shape[1], *like.shape[1:])
    out[:, layout.row < 0, 0] = 1.0
    out[:, layout.binary, 1] = p[: len(layout.binary)].T
    out[:, layout.binary, 0] = 1.0 - p[: len(layout.binary)].T
    for k, members, rows in layout.many:
        out[:, members, :k] = fold(p[slice(*rows)], -1, k).permute(2, 0, 1)
    return out


def dive(
    batch: ModelBatch, layout: Layout, dtype: torch.dtype, limits: Limits, p: Tensor, warm: Warm, scale: Tensor
) -> Tensor:
    """Good feasible assignments (B, N) as a rule, from the marginals p (V, B) of the models' relaxations.

    What the dive ends in and the marginals themselves are repaired and searched from; the best is returned.
    """
    forbidden = batch.unary == -torch.inf
    likely = marginals_of(layout, p, forbidden)
    sure = likely.clamp(min=1e-6).log()
    for step in range(_STEPS):
        top, state = likely.masked_fill(forbidden, -1.0).max(2)
        undecided = (~forbidden).sum(2) > 1  # shape: (B, N)
        share = torch.ceil(undecided.sum(1) / (_STEPS - step)).to(torch.int64)
        rank = top.masked_fill(~undecided, -2.0).argsort(1, descending=True).argsort(1)
        fixed = undecided & ((rank < share[:, None]) | (top >= _SURE))
        forbidden = forbidden | fixed[:, :, None]
        forbidden.scatter_(2, state[:, :, None], forbidden.gather(2, state[:, :, None]) & ~fixed[:, :, None])
        if step == _STEPS - 1 or time.monotonic() >= limits.deadline:
            break
        part = replace(batch, unary=batch.unary.masked_fill(forbidden, -torch.inf))
        found = relax(layout, build_numbers(part, layout, scale), dtype, limits, warm=warm)
        likely, warm = marginals_of(layout, found.p, forbidden), found.end
    ends = (~forbidden).to(torch.int8).argmax(2)
    left = max(0.1, limits.deadline - time.monotonic())
    return decode(batch, sure, starts=[ends], time_limit=left if left < 1e9 else None)
