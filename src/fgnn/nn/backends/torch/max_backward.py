r"""The gradient of a maximum of Q(t_e) · h_e, from its winners alone.

Of the K messages at one entry j of a destination only the first maximum :math:`e^*_j` passes gradient, so with
:math:`\varphi^*_j = \varphi_{e^*_j}` and :math:`u_j = \bar y_j h_{e^*_j}` (:math:`\bar y` the gradient from above)

.. math:: \bar W_{\tau j} = \sum_d \varphi^*_{j\tau} u_j, \quad
          \bar h_e = \sum_{j: e^*_j = e} \bar y_j \sum_\tau \varphi^*_{j\tau} W_{\tau j}, \quad
          \bar\varphi_{e\tau} = \sum_{j: e^*_j = e} W_{\tau j} \cdot u_j

which is about 6 T m n operations a destination where a gradient at every edge would take 4 K T m n.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.graph import Side
from fgnn.nn.backends.torch.block_rows import block_rows
from fgnn.nn.backends.torch.gather import Gather
from fgnn.nn.backends.torch.products import through


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
    d_node = weight.new_zeros((edges + 1, batch, inner)) if wants[0] or wants[1] else None
    d_phi = weight.new_zeros((edges + 1, batch, terms)) if wants[2] else None
    d_weight = torch.zeros_like(by_entry) if wants[3] else None
    for rows in block_rows(gather, phi, towards, width):
        count, places = rows.edges.shape
        hit = winner[rows.to].unsqueeze(2) == rows.edges.view(count, 1, places, 1)
        if rows.padding is not None:
            hit &= ~rows.padding.view(count, 1, places, 1)
        mask = hit.flatten(0, 1).to(weight.dtype)  # shape: (rows, K, m), 1 at each winner
        up = mask * grad[rows.to].flatten(0, 1).unsqueeze(1)
        phi_won = torch.bmm(mask.transpose(1, 2), rows.phi).transpose(0, 1)  # shape: (m, rows, T)
        u = torch.bmm(up.transpose(1, 2), rows.h).transpose(0, 1)  # shape: (m, rows, n)
        if d_weight is not None:
            d_weight += torch.bmm(phi_won.transpose(1, 2), u)
        if d_node is not None:
            back = torch.bmm(up, torch.bmm(phi_won, by_entry).transpose(0, 1))
            rows.put(d_node, through(back, rows.h, gather.relu))
        if d_phi is not None:
            rows.put(d_phi, torch.bmm(mask, torch.bmm(u, by_entry.transpose(1, 2)).transpose(0, 1)))
    return (
        None if d_node is None else d_node[:edges],
        None if d_phi is None else edge_gradient_of_phi(d_phi, phi),
        None if d_weight is None else d_weight.transpose(0, 1),
    )


def edge_gradient_of_phi(d_phi: Tensor, phi: Tensor) -> Tensor:
    """(E + 1, B, T) as φ has it: summed over samples that share it, or samples first."""
    return d_phi[:-1].sum(1) if phi.dim() == 2 else d_phi[:-1].transpose(0, 1)
