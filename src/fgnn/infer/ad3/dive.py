"""A first assignment for the search: fix the most certain variables of the relaxation, relax again, repeat."""

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
_CERTAIN = 0.99  # marginals from here on are fixed at once


def marginals_of(layout: Layout, p: Tensor, like: Tensor) -> Tensor:
    """Rows (V, W) as marginals (W, N, K), with N and K of another tensor."""
    out = p.new_zeros(p.shape[1], *like.shape[1:])
    out[:, layout.row < 0, 0] = 1.0
    out[:, layout.binary, 1] = p[: len(layout.binary)].T
    out[:, layout.binary, 0] = 1.0 - p[: len(layout.binary)].T
    for k, members, rows in layout.many:
        out[:, members, :k] = fold(p[rows], -1, k).permute(2, 0, 1)
    return out


def dive(
    batch: ModelBatch, layout: Layout, dtype: torch.dtype, limits: Limits, p: Tensor, warm: Warm, scale: Tensor
) -> Tensor:
    """Assignments (B, N), mostly good and feasible, from the marginals p (V, B) of the relaxation.

    Local search starts from the end of the dive and from the marginals; the best result is returned.
    """
    forbidden = batch.unary == -torch.inf
    marginals = marginals_of(layout, p, forbidden)
    scores = marginals.clamp(min=1e-6).log()
    for step in range(_STEPS):
        top, state = marginals.masked_fill(forbidden, -1.0).max(2)
        undecided = (~forbidden).sum(2) > 1  # shape: (B, N)
        share = torch.ceil(undecided.sum(1) / (_STEPS - step)).to(torch.int64)
        rank = top.masked_fill(~undecided, -2.0).argsort(1, descending=True).argsort(1)
        fixed = undecided & ((rank < share[:, None]) | (top >= _CERTAIN))
        forbidden = forbidden | fixed[:, :, None]
        forbidden.scatter_(2, state[:, :, None], forbidden.gather(2, state[:, :, None]) & ~fixed[:, :, None])
        if step == _STEPS - 1 or time.monotonic() >= limits.deadline:
            break
        restricted = replace(batch, unary=batch.unary.masked_fill(forbidden, -torch.inf))
        relaxed = relax(layout, build_numbers(restricted, layout, scale), dtype, limits, warm=warm)
        marginals, warm = marginals_of(layout, relaxed.p, forbidden), relaxed.end
    ends = (~forbidden).to(torch.int8).argmax(2)
    left = max(0.1, limits.deadline - time.monotonic())
    return decode(batch, scores, starts=[ends], time_limit=left if left < 1e9 else None)
