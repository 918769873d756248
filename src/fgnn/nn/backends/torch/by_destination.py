r"""Sums of Q(t_e) · h_e, and the gradient of a maximum of them, computed destination by destination.

A sum adds up φ ⊗ h first, so that W is applied once per destination instead of once per edge:

.. math:: \sum_e \sum_\tau \varphi_{e\tau} W_\tau h_e = \sum_\tau W_\tau z_\tau, \qquad
          z_\tau = \sum_e \varphi_{e\tau} h_e

Of the K messages at entry j of a destination only the first maximum :math:`e^*_j` passes gradient, so with
:math:`\varphi^*_j = \varphi_{e^*_j}` and :math:`u_j = \bar y_j h_{e^*_j}` (:math:`\bar y` the upstream gradient)

.. math:: \bar W_{\tau j} = \sum_d \varphi^*_{j\tau} u_j, \quad
          \bar h_e = \sum_{j: e^*_j = e} \bar y_j \sum_\tau \varphi^*_{j\tau} W_{\tau j}, \quad
          \bar\varphi_{e\tau} = \sum_{j: e^*_j = e} W_{\tau j} \cdot u_j

which is about 6 T m n operations per destination instead of 4 K T m n for a gradient at every edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.nn.backends.torch.chunks import EdgeInputs, cut, limit
from fgnn.nn.backends.torch.edge_messages import EdgeGradients

# Batches of small products pay for temporaries somewhat larger than the cache.
_LARGER = 4


def forward_sum(inputs: EdgeInputs) -> Tensor:
    """The sum at each destination, zero without edges.  # shape: (D, B, m)"""
    weight = inputs.weight
    terms, width, inner = weight.shape
    flat = weight.transpose(1, 2).reshape(terms * inner, width)
    out = weight.new_zeros((inputs.call.incidence.num_destinations(inputs.call.towards), inputs.batch, width))
    for rows in _row_blocks(inputs):
        z = torch.bmm(rows.phi.transpose(1, 2), rows.h)  # shape: (rows, T, n)
        out[rows.to] = (z.flatten(1) @ flat).view(-1, inputs.batch, width)
    return out


def backward_sum(grad: Tensor, inputs: EdgeInputs, wants: Sequence[bool]) -> EdgeGradients:
    """Gradients at σ's argument (E, B, n), at φ and at W; None for those not wanted.  # grad shape: (D, B, m)"""
    weight = inputs.weight
    terms, width, inner = weight.shape
    flat = weight.transpose(0, 1).reshape(width, terms * inner)
    grads = _Gradients(inputs, wants)
    d_flat = torch.zeros_like(flat) if wants[3] else None
    for rows in _row_blocks(inputs):
        up = grad[rows.to].flatten(0, 1)  # shape: (rows, m)
        if d_flat is not None:
            d_flat.addmm_(up.T, torch.bmm(rows.phi.transpose(1, 2), rows.h).flatten(1))
        if grads.node is None and grads.phi is None:
            continue
        d_z = (up @ flat).view(-1, terms, inner)
        if grads.node is not None:
            rows.put(grads.node, inputs.through_activation(torch.bmm(rows.phi, d_z), rows.h))
        if grads.phi is not None:
            rows.put(grads.phi, torch.bmm(rows.h, d_z.transpose(1, 2)))
    return *grads.by_edge(), None if d_flat is None else d_flat.view(width, terms, inner).transpose(0, 1)


def backward_max(grad: Tensor, winner: Tensor, inputs: EdgeInputs, wants: Sequence[bool]) -> EdgeGradients:
    """The same for a maximum, from the edges that attained it.  # winner shape: (D, B, m)"""
    weight = inputs.weight
    by_entry = weight.transpose(0, 1).contiguous()  # shape: (m, T, n)
    grads = _Gradients(inputs, wants)
    d_weight = torch.zeros_like(by_entry) if wants[3] else None
    for rows in _row_blocks(inputs):
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
        if grads.node is not None:
            back = torch.bmm(up, torch.bmm(phi_won, by_entry).transpose(0, 1))
            rows.put(grads.node, inputs.through_activation(back, rows.h))
        if grads.phi is not None:
            rows.put(grads.phi, torch.bmm(mask, torch.bmm(u, by_entry.transpose(1, 2)).transpose(0, 1)))
    return *grads.by_edge(), None if d_weight is None else d_weight.transpose(0, 1)


class _Gradients:
    """Gradients by edge, (E + 1, B, ·): padding writes to the last row."""

    def __init__(self, inputs: EdgeInputs, wants: Sequence[bool]) -> None:
        shape, weight = (inputs.call.incidence.num_edges + 1, inputs.batch), inputs.weight
        self.node = weight.new_zeros((*shape, weight.shape[2])) if wants[0] or wants[1] else None
        self.phi = weight.new_zeros((*shape, weight.shape[0])) if wants[2] else None
        self.shared = inputs.coefficients.dim() == 2

    def by_edge(self) -> tuple[Tensor | None, Tensor | None]:
        """Without the last row; φ's in φ's shape, summed over samples that share it."""
        node = None if self.node is None else self.node[:-1]
        if self.phi is None:
            return node, None
        return node, self.phi[:-1].sum(1) if self.shared else self.phi[:-1].transpose(0, 1)


@dataclass(frozen=True, eq=False)
class _RowBlock:
    """Some destinations times all samples, each with K places for edges.

    Attributes:
        to: The destinations, an index into axis 0 of (D, B, ...).
        edges: (R, K).
        padding: (R, K) True where a place only repeats an edge; None if none does.
        h: (R·B, K, n).
        phi: (R·B, K, T), zero at padding.
    """

    to: slice | Tensor
    edges: Tensor
    padding: Tensor | None
    h: Tensor
    phi: Tensor

    def put(self, target: Tensor, x: Tensor) -> None:
        """Write x (R·B, K, ·) into a target (E + 1, B, ·) by edge."""
        rows, width = self.edges.shape
        by_edge = x.view(rows, target.shape[1], width, -1).transpose(1, 2).flatten(0, 1)
        at = self.edges if self.padding is None else self.edges.masked_fill(self.padding, target.shape[0] - 1)
        target[at.reshape(-1)] = by_edge


def _row_blocks(inputs: EdgeInputs) -> Iterator[_RowBlock]:
    """All destinations with edges, in chunks."""
    batch, phi = inputs.batch, inputs.coefficients
    terms, width, inner = inputs.weight.shape
    if not batch:  # sums over no samples are zero
        return
    for block in inputs.call.incidence.blocks(inputs.call.towards):
        each = batch * (2 * block.width * (width + inner) + 2 * max(width, terms) * (inner + terms))
        for rows in cut(block.rows, _LARGER * limit(phi.device) // each):
            padding = None if block.padding is None else block.padding[rows]
            if block.edges is None:
                first, last = rows.start * block.width, rows.stop * block.width
                edges = torch.arange(first, last, device=phi.device).view(-1, block.width)
            else:
                edges = block.edges[rows]
            h = inputs.h(edges.reshape(-1), slice(None))
            h = h.view(*edges.shape, batch, inner).transpose(1, 2).flatten(0, 1)
            own = phi.dim() == 3
            phis = phi[:, edges].transpose(0, 1) if own else phi[edges].unsqueeze(1).expand(-1, batch, -1, -1)
            if padding is not None:
                phis = phis.masked_fill(padding.view(len(edges), 1, -1, 1), 0.0)
            to = rows if block.destinations is None else block.destinations[rows]
            yield _RowBlock(to, edges, padding, h, phis.flatten(0, 1))
