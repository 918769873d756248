"""Edges and samples in chunks whose temporaries stay small, and what their messages Q(t_e) · h_e are computed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.nn.backends.choice import EdgeCall

# Elements of a chunk's largest temporary: cache-sized on a CPU, few launches on a GPU.
_CHUNK = {"cpu": 1 << 19}
_CHUNK_ACCELERATOR = 1 << 26
# Products of fewer rows than this do not pay for reading their matrix.
MIN_ROWS = 128


def limit(device: torch.device) -> int:
    """The number of elements a temporary may have on a device."""
    return _CHUNK.get(device.type, _CHUNK_ACCELERATOR)


def cut(total: int, size: int) -> Iterator[slice]:
    """0..total in slices of ``size``; the last may be shorter."""
    for start in range(0, total, max(size, 1)):
        yield slice(start, min(start + max(size, 1), total))


def row_chunks(
    edges: int, batch: int, each: int, device: torch.device, arity: int | None = None
) -> Iterator[tuple[slice, slice]]:
    """Chunks of edges and samples within the limit, at ``each`` elements a row; of whole factors if arity is given."""
    rows = max(limit(device) // max(each, 1), 1)
    size = max(rows // max(batch, 1), 1)
    if arity and size > arity:
        size -= size % arity
    for es in cut(edges, size):
        for bs in cut(batch, rows):
            yield es, bs


@dataclass(frozen=True, eq=False)
class EdgeInputs:
    """h_e = σ(a_c + b_i), computed on demand from node features (node, B, n), and what Q is made of."""

    a: Tensor
    b: Tensor | None
    phi: Tensor | None  # shape: (E, T) or (B, E, T)
    weight: Tensor  # shape: (T, m, n)
    call: EdgeCall

    @property
    def coefficients(self) -> Tensor:
        """φ, for messages that are not typed."""
        assert self.phi is not None
        return self.phi

    @property
    def batch(self) -> int:
        """B."""
        return int(self.a.shape[1])

    def h(self, edges: slice | Tensor, samples: slice, out: Tensor | None = None) -> Tensor:
        """h of these edges; written to ``out`` if given, unless ``b`` is None.  # shape: (Ec, Bc, n)"""
        every = samples == slice(None) or (samples.start == 0 and samples.stop == self.batch)
        a = self.a if every else self.a[:, samples]
        if self.b is None:
            h = a[edges]
            return h.relu() if self.call.relu else h
        b, incidence = self.b if every else self.b[:, samples], self.call.incidence
        h = torch.index_select(b, 0, incidence.variable[edges], out=out)
        arity = incidence.arity
        if isinstance(edges, slice) and arity and edges.start % arity == 0 and edges.stop % arity == 0:
            whole = a[edges.start // arity : edges.stop // arity]  # the edges of a factor are contiguous
            h.view(-1, arity, *h.shape[1:]).add_(whole.unsqueeze(1))
        else:
            h.add_(a.index_select(0, incidence.factor[edges]))
        return h.relu_() if self.call.relu else h

    def through_activation(self, grad: Tensor, h: Tensor) -> Tensor:
        """The gradient at σ's argument, from the gradient at h."""
        return torch.ops.aten.threshold_backward(grad, h, 0) if self.call.relu else grad

    def phi_chunk(self, es: slice, bs: slice) -> Tensor:
        """φ of a chunk.  # shape: (Ec, Bc or 1, T)"""
        phi = self.coefficients
        return phi[bs, es].transpose(0, 1) if phi.dim() == 3 else phi[es].unsqueeze(1)
