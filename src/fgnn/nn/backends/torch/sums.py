r"""A sum of Q(t_e) · h_e, by summing φ ⊗ h first.

.. math:: \sum_e \sum_\tau \varphi_{e\tau} W_\tau h_e = \sum_\tau W_\tau z_\tau, \qquad
          z_\tau = \sum_e \varphi_{e\tau} h_e

so that W is applied once a destination instead of once an edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.graph import Side
from fgnn.nn.backends.torch.block_rows import block_rows
from fgnn.nn.backends.torch.gather import Gather
from fgnn.nn.backends.torch.max_backward import edge_gradient_of_phi
from fgnn.nn.backends.torch.products import through


def forward_sum(gather: Gather, phi: Tensor, weight: Tensor, towards: Side) -> Tensor:
    """The sum at each destination, zero without edges.  # shape: (D, B, m)"""
    terms, width, inner = weight.shape
    flat = weight.transpose(1, 2).reshape(terms * inner, width)
    out = weight.new_zeros((gather.incidence.num_destinations(towards), gather.batch, width))
    for rows in block_rows(gather, phi, towards, width):
        z = torch.bmm(rows.phi.transpose(1, 2), rows.h)  # shape: (rows, T, n)
        out[rows.to] = (z.flatten(1) @ flat).view(-1, gather.batch, width)
    return out


def backward_sum(
    grad: Tensor,  # shape: (D, B, m)
    gather: Gather,
    phi: Tensor,
    weight: Tensor,
    towards: Side,
    wants: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients at σ's argument (E, B, n), at φ and at W; None for those not wanted."""
    edges, batch = gather.incidence.num_edges, gather.batch
    terms, width, inner = weight.shape
    flat = weight.transpose(0, 1).reshape(width, terms * inner)
    d_node = weight.new_zeros((edges + 1, batch, inner)) if wants[0] or wants[1] else None
    d_phi = weight.new_zeros((edges + 1, batch, terms)) if wants[2] else None
    d_flat = torch.zeros_like(flat) if wants[3] else None
    for rows in block_rows(gather, phi, towards, width):
        up = grad[rows.to].flatten(0, 1)  # shape: (rows, m)
        if d_flat is not None:
            d_flat.addmm_(up.T, torch.bmm(rows.phi.transpose(1, 2), rows.h).flatten(1))
        if d_node is None and d_phi is None:
            continue
        d_z = (up @ flat).view(-1, terms, inner)
        if d_node is not None:
            rows.put(d_node, through(torch.bmm(rows.phi, d_z), rows.h, gather.relu))
        if d_phi is not None:
            rows.put(d_phi, torch.bmm(rows.h, d_z.transpose(1, 2)))
    return (
        None if d_node is None else d_node[:edges],
        None if d_phi is None else edge_gradient_of_phi(d_phi, phi),
        None if d_flat is None else d_flat.view(width, terms, inner).transpose(0, 1),
    )
