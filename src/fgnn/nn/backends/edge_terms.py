r"""The terms of :math:`Q(t) = \sum_\tau \varphi_\tau(t) W_\tau`, forward and backward, without autograd.

φ is a small network on the features of edges. Where they depend on the position in the scope only, the sum is
evaluated once per position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends import linear_passes
from fgnn.nn.backends.triton import edge_mlp
from fgnn.nn.backends.triton.linear import Linear


class Terms(NamedTuple):
    """How φ and Q are computed.

    Attributes:
        constant: Whether φ ends with a constant one, after a ReLU on all layers.
        fused: Whether the kernel of the small linear layer is used.
        in_one: Whether one kernel computes the whole of φ.
    """

    constant: bool
    fused: bool
    in_one: bool


def coefficients(t: Tensor, net: Sequence[Tensor], how: Terms, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """φ(t) (..., T), and the hidden layers that :func:`backward` reads. ``net`` has Θ and β of each layer."""
    if how.in_one:
        w1, b1, w2, b2 = net
        return edge_mlp.forward(t.contiguous(), w1, b1, w2, b2, dtype), []
    hidden = [t]
    for k in range(0, len(net), 2):
        relu = how.constant or k + 2 < len(net)
        hidden += linear_passes.forward([Linear(hidden[-1], net[k], net[k + 1])], relu, dtype, how.fused)
    phi = hidden.pop()
    return torch.cat([phi, phi.new_ones((*phi.shape[:-1], 1))], -1) if how.constant else phi, hidden[1:]


def matrices(phi: Tensor, weight: Tensor) -> Tensor:
    """Q for each row of φ (R, T).  # shape: (R, m, n)"""
    return (phi @ weight.to(phi.dtype).flatten(1)).view(-1, *weight.shape[1:])


def matrices_backward(d_q: Tensor, phi: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients at φ and at W."""
    flat = d_q.to(phi.dtype).flatten(1)
    return flat @ weight.to(phi.dtype).flatten(1).T, (phi.T @ flat).view(weight.shape).to(weight.dtype)


def backward(
    d_phi: Tensor, phi: Tensor, hidden: Sequence[Tensor], t: Tensor, net: Sequence[Tensor], how: Terms, want_t: bool
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Gradients at t, None unless wanted, and at the network's parameters."""
    if how.in_one:
        return None, list(edge_mlp.backward(d_phi, t.contiguous(), *net[:3]))
    if how.constant:
        phi, d_phi = phi[..., :-1].contiguous(), d_phi[..., :-1].contiguous()
    found: list[Tensor | None] = []
    grad, y, inputs = d_phi, phi if how.constant else None, [t, *hidden]
    for k in reversed(range(len(inputs))):
        layer = Linear(inputs[k], net[2 * k], net[2 * k + 1])
        ((d_x, d_weight, d_bias),) = linear_passes.backward(
            [layer], [y], [grad], phi.dtype, how.fused, [(k > 0 or want_t, True, True)]
        )
        found, y = [d_weight, d_bias, *found], inputs[k]
        if d_x is None:
            return None, found
        grad = d_x
    return grad, found
