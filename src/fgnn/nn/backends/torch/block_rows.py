"""The edges of some destinations side by side, so that what concerns one destination is one small product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.graph import Block, Side
from fgnn.nn.backends.torch.gather import Gather, cut, limit

# Products of a whole chunk at a time pay for temporaries somewhat larger than the cache.
_LARGER = 4


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Some destinations times all samples, each with K places for edges.

    Attributes:
        to: The destinations, an index into axis 0 of (D, B, ...).
        edges: (R, K).
        padding: (R, K) True where a place only repeats an edge; None where none does.
        h: (R·B, K, n).
        phi: (R·B, K, T), zero at padding.
    """

    to: slice | Tensor
    edges: Tensor
    padding: Tensor | None
    h: Tensor
    phi: Tensor

    def put(self, target: Tensor, x: Tensor) -> None:
        """Write x (R·B, K, ·) into a target (E + 1, B, ·) by edge; padding goes to the row after the last edge."""
        rows, width = self.edges.shape
        by_edge = x.view(rows, target.shape[1], width, -1).transpose(1, 2).flatten(0, 1)
        at = self.edges if self.padding is None else self.edges.masked_fill(self.padding, target.shape[0] - 1)
        target[at.reshape(-1)] = by_edge


def block_rows(gather: Gather, phi: Tensor, towards: Side, width: int) -> Iterator[BlockRows]:
    """All destinations with edges, in chunks; ``width`` is m, which sizes the chunks."""
    batch, inner, terms = gather.batch, int(gather.a.shape[2]), int(phi.shape[-1])
    for block in gather.incidence.blocks(towards):
        each = batch * (2 * block.width * (width + inner) + 2 * max(width, terms) * (inner + terms))
        for rows in cut(block.rows, _LARGER * limit(phi.device) // each):
            edges, padding = _edges(block, rows, phi.device)
            h = gather(edges.reshape(-1), slice(None))
            h = h.view(*edges.shape, batch, inner).transpose(1, 2).flatten(0, 1)
            to = rows if block.destinations is None else block.destinations[rows]
            yield BlockRows(to, edges, padding, h, _phi(phi, edges, padding, batch))


def _edges(block: Block, rows: slice, device: torch.device) -> tuple[Tensor, Tensor | None]:
    if block.edges is None:
        start, stop = rows.start * block.width, rows.stop * block.width
        return torch.arange(start, stop, device=device).view(-1, block.width), None
    return block.edges[rows], None if block.padding is None else block.padding[rows]


def _phi(phi: Tensor, edges: Tensor, padding: Tensor | None, batch: int) -> Tensor:
    rows = phi[:, edges].transpose(0, 1) if phi.dim() == 3 else phi[edges].unsqueeze(1).expand(-1, batch, -1, -1)
    if padding is not None:
        rows = rows.masked_fill(padding.view(edges.shape[0], 1, edges.shape[1], 1), 0.0)
    return rows.flatten(0, 1)
