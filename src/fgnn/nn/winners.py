r"""The gradient of a maximum of Q(t_e) · h_e, from its winners alone.

Of the K messages at one entry j of a destination only the first maximum :math:`e^*_j` passes gradient, so with
:math:`\varphi^*_j = \varphi_{e^*_j}` and :math:`u_j = \bar y_j h_{e^*_j}` (:math:`\bar y` the gradient from above)

.. math:: \bar W_{\tau j} = \sum_d \varphi^*_{j\tau} u_j, \quad
          \bar h_e = \sum_{j: e^*_j = e} \bar y_j \sum_\tau \varphi^*_{j\tau} W_{\tau j}, \quad
          \bar\varphi_{e\tau} = \sum_{j: e^*_j = e} W_{\tau j} \cdot u_j

which is about 2 T m n operations a destination where a gradient at every edge would take 2 K T m n.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.graph import Block, Side
from fgnn.nn.products import Gather, cut, limit

# Products of a whole chunk at a time pay for temporaries somewhat larger than the cache.
_LARGER = 4


def backward_max(
    grad: Tensor,  # shape: (D, B, m)
    winner: Tensor,  # shape: (D, B, m), edges
    gather: Gather,
    phi: Tensor,
    weight: Tensor,
    towards: Side,
    wants: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients at σ's argument (E, B, n), at φ and at W; None for those not wanted."""
    edges, batch = gather.incidence.num_edges, gather.batch
    terms, width, inner = weight.shape
    by_entry = weight.transpose(0, 1).contiguous()  # shape: (m, T, n)
    # one row more than edges: padding is written there
    d_node = weight.new_zeros((edges + 1, batch, inner)) if wants[0] or wants[1] else None
    d_phi = weight.new_zeros((edges + 1, batch, terms)) if wants[2] else None
    d_weight = torch.zeros_like(by_entry) if wants[3] else None
    for block in gather.incidence.blocks(towards):
        each = batch * (2 * block.width * (width + inner) + 2 * width * (inner + terms))
        for rows in cut(block.rows, _LARGER * limit(weight.device) // each):
            at, padding = _edges(block, rows, weight.device)
            to = rows if block.destinations is None else block.destinations[rows]
            h = _by_row(gather(at.reshape(-1), slice(None)), at)  # shape: (rows, K, n)
            hit = winner[to].unsqueeze(2) == at.view(at.shape[0], 1, at.shape[1], 1)
            if padding is not None:
                hit &= ~padding.view(at.shape[0], 1, at.shape[1], 1)
            mask = hit.flatten(0, 1).to(weight.dtype)  # shape: (rows, K, m), 1 at each winner
            up = mask * grad[to].flatten(0, 1).unsqueeze(1)
            f = _phi_rows(phi, at, batch)  # shape: (rows, K, T)
            f_won = torch.bmm(mask.transpose(1, 2), f).transpose(0, 1)  # shape: (m, rows, T)
            u = torch.bmm(up.transpose(1, 2), h).transpose(0, 1)  # shape: (m, rows, n)
            if d_weight is not None:
                d_weight += torch.bmm(f_won.transpose(1, 2), u)
            write = at if padding is None else at.masked_fill(padding, edges)
            if d_node is not None:
                back = torch.bmm(up, torch.bmm(f_won, by_entry).transpose(0, 1))
                back = back * (h > 0) if gather.relu else back
                d_node[write.reshape(-1)] = _by_edge(back, at, batch)
            if d_phi is not None:
                found = torch.bmm(mask, torch.bmm(u, by_entry.transpose(1, 2)).transpose(0, 1))
                d_phi[write.reshape(-1)] = _by_edge(found, at, batch)
    return (
        None if d_node is None else d_node[:edges],
        None if d_phi is None else d_phi[:edges].sum(1) if phi.dim() == 2 else d_phi[:edges].transpose(0, 1),
        None if d_weight is None else d_weight.transpose(0, 1),
    )


def _edges(block: Block, rows: slice, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The edges of these rows of a block (rows, K), and which places only repeat."""
    if block.edges is None:
        start, stop = rows.start * block.width, rows.stop * block.width
        return torch.arange(start, stop, device=device).view(-1, block.width), None
    return block.edges[rows], None if block.padding is None else block.padding[rows]


def _by_row(x: Tensor, at: Tensor) -> Tensor:
    """(R·K, B, ·) as (R·B, K, ·)."""
    return x.view(*at.shape, *x.shape[1:]).transpose(1, 2).flatten(0, 1)


def _by_edge(x: Tensor, at: Tensor, batch: int) -> Tensor:
    """(R·B, K, ·) as (R·K, B, ·)."""
    return x.view(at.shape[0], batch, at.shape[1], -1).transpose(1, 2).flatten(0, 1)


def _phi_rows(phi: Tensor, at: Tensor, batch: int) -> Tensor:
    """φ of these edges.  # shape: (R·B, K, T)"""
    if phi.dim() == 3:
        return phi[:, at].transpose(0, 1).flatten(0, 1)
    rows = phi[at]
    return rows if batch == 1 else rows.repeat_interleave(batch, 0)
