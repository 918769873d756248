"""Tile sizes and index tables that the fused solver kernels share."""

from __future__ import annotations

import torch
from torch import Tensor

MODELS = 32  # models of a program: a row of them is one cache line
ROWS = 8  # rows of a tile where any number would do
# A program goes through the factors of its models in sequence. With many factors only many models keep the GPU busy;
# with few models, separate operations over all factors are faster.
_MOST_TILES, _MANY_MODELS = 1000, 8192


def worth_fusing(pairs: int, counts: int, variables: int, models: int) -> bool:
    """Whether one launch for many iterations is faster than separate operations."""
    return pairs // ROWS + counts + variables <= _MOST_TILES or models >= _MANY_MODELS


def index_rows(parts: list[Tensor], width: int, device: torch.device) -> Tensor:
    """Index tables (n, up to ``width``) one below the other, int32, padded with -1."""
    padded = [torch.nn.functional.pad(part.cpu(), (0, width - part.shape[1]), value=-1) for part in parts]
    whole = torch.cat([torch.zeros(0, width, dtype=torch.int64), *padded])
    return whole.to(device=device, dtype=torch.int32).contiguous()
