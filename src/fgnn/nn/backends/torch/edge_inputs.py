"""What messages Q(t_e) · h_e are computed from: h_e and φ_e of a chunk of edges and samples, and W."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.graph import Incidence
from fgnn.nn.backends.edge_call import EdgeCall


@dataclass(frozen=True, eq=False)
class EdgeInputs:
    """h_e = σ(a_c + b_i), computed on demand from node features (node, B, n), and what Q is made of."""

    a: Tensor
    b: Tensor | None
    phi: Tensor | None  # shape: (E, T) or (B, E, T)
    weight: Tensor  # shape: (T, m, n)
    call: EdgeCall

    @property
    def incidence(self) -> Incidence:
        """The edges."""
        return self.call.incidence

    @property
    def coefficients(self) -> Tensor:
        """φ, for messages that are not typed."""
        assert self.phi is not None
        return self.phi

    @property
    def batch(self) -> int:
        """B."""
        return int(self.a.shape[1])

    def __call__(self, edges: slice | Tensor, samples: slice, out: Tensor | None = None) -> Tensor:
        """h of these edges; written to ``out`` if given, unless ``b`` is None.  # shape: (Ec, Bc, n)"""
        every = samples == slice(None) or (samples.start == 0 and samples.stop == self.batch)
        a = self.a if every else self.a[:, samples]
        if self.b is None:
            h = a[edges]
            return h.relu() if self.call.relu else h
        b = self.b if every else self.b[:, samples]
        h = torch.index_select(b, 0, self.incidence.variable[edges], out=out)
        arity = self.incidence.arity
        if isinstance(edges, slice) and arity and edges.start % arity == 0 and edges.stop % arity == 0:
            whole = a[edges.start // arity : edges.stop // arity]  # the edges of a factor are contiguous
            h.view(-1, arity, *h.shape[1:]).add_(whole.unsqueeze(1))
        else:
            h.add_(a.index_select(0, self.incidence.factor[edges]))
        return h.relu_() if self.call.relu else h

    def through_activation(self, grad: Tensor, h: Tensor) -> Tensor:
        """The gradient at σ's argument, from the gradient at h."""
        return grad * (h > 0) if self.call.relu else grad

    def phi_chunk(self, es: slice, bs: slice) -> Tensor:
        """φ of a chunk.  # shape: (Ec, Bc or 1, T)"""
        phi = self.coefficients
        return phi[bs, es].transpose(0, 1) if phi.dim() == 3 else phi[es].unsqueeze(1)
