"""Q(t_e) · h_e as a CPU does it best: all W_τ h of a few rows in a buffer that stays in the cache, weighed by φ."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.nn.aggregate import first_max
from fgnn.nn.gather import Gather, cut, limit, phi_of, row_chunks

# What a product of some rows may fill, in parts of a chunk: it is read again at once, and by the core that wrote it.
_PART = 2
# Fewer rows than this do not pay for reading W.
_FEW = 128
# Up to so many products a row, adding them up term by term beats a batch of tiny products, fivefold.
_NARROW = 512


class Projection:
    """Messages of a chunk of rows, edges times samples; its buffer serves all chunks."""

    def __init__(self, gather: Gather, phi: Tensor, weight: Tensor) -> None:
        self.gather, self.phi = gather, phi
        self.terms, self.width, self.inner = weight.shape
        self.flat = weight.reshape(self.terms * self.width, self.inner).T  # shape: (n, T·m)
        each = self.terms * self.width
        rows = max(limit(weight.device) // (_PART * each), _FEW)
        self.buffer = weight.new_empty((min(rows, gather.incidence.num_edges * gather.batch), each))
        self.narrow = each <= _NARROW and weight.dtype in (torch.float32, torch.float64)

    def __call__(self, es: slice, bs: slice) -> Tensor:
        """Q h of these edges and samples.  # shape: (Ec, Bc, m)"""
        h = self.gather(es, bs)
        shape = (h.shape[0], h.shape[1], self.width)
        h = h.reshape(-1, self.inner)
        f = phi_of(self.phi, es, bs).expand(-1, shape[1], -1).reshape(h.shape[0], 1, self.terms)
        out = h.new_empty((h.shape[0], 1, self.width))
        for rows in cut(h.shape[0], self.buffer.shape[0]):
            buffer = self.buffer[: rows.stop - rows.start]
            projected = torch.mm(h[rows], self.flat, out=buffer).view(-1, self.terms, self.width)
            if self.narrow:
                made = torch.mul(projected[:, 0], f[rows, 0, :1], out=out[rows, 0])
                for term in range(1, self.terms):
                    made.addcmul_(projected[:, term], f[rows, 0, term, None])
            else:
                torch.bmm(f[rows], projected, out=out[rows])
        return out.view(shape)


def project_all(gather: Gather, phi: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """The message of each edge, into ``out``.  # shape: (E, B, m)"""
    edges, batch = out.shape[:2]
    project = Projection(gather, phi, weight)
    for es, bs in row_chunks(edges, batch, _row(weight), out.device, gather.incidence.arity):
        out[es, bs] = project(es, bs)
    return out


def project_max(gather: Gather, phi: Tensor, weight: Tensor, arg: bool) -> tuple[Tensor, Tensor | None]:
    """The maximum at each factor, where all have A edges, taken while its messages are in the cache.

    Returns:
        values (C, B, m) and, with ``arg``, the edge of the first maximum (C, B, m), else None.
    """
    arity, factors, batch = gather.incidence.arity, gather.incidence.num_factors, gather.batch
    assert arity
    project = Projection(gather, phi, weight)
    values = weight.new_empty((factors, batch, project.width))
    edges = weight.new_empty(values.shape, dtype=torch.long) if arg else None
    for cs, bs in row_chunks(factors, batch, arity * _row(weight), weight.device):
        messages = project(slice(cs.start * arity, cs.stop * arity), bs).view(-1, arity, *values[:1, bs].shape[1:])
        if edges is None:
            values[cs, bs] = messages.amax(1)
            continue
        values[cs, bs], place = first_max(messages)
        first = torch.arange(cs.start * arity, cs.stop * arity, arity).view(-1, 1, 1)
        torch.add(place, first, out=edges[cs, bs])
    return values, edges


def _row(weight: Tensor) -> int:
    """Elements of one row's h and message."""
    return int(weight.shape[1] + weight.shape[2])
