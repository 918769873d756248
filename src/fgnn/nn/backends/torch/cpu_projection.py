"""Q(t_e) · h_e on a CPU: all W_τ h of a few rows in a buffer that stays in the cache, weighted by φ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fgnn.nn.backends.torch.chunks import EdgeInputs, cut, limit, row_chunks
from fgnn.nn.backends.torch.reduce import first_max

# Fewer rows than this do not pay for reading W.
_MIN_ROWS = 128
# Up to this many products a row, adding them up term by term is five times faster than a batch of tiny products.
_NARROW = 512


class Projection:
    """Messages of a chunk of rows, edges times samples; all chunks share buffers, which stay in the cache.

    ``each`` is the number of edges of one line of the chunks: 1, or A where they are chunks of factors.
    """

    def __init__(self, inputs: EdgeInputs, chunks: Sequence[tuple[slice, slice]], each: int = 1) -> None:
        self.inputs, weight = inputs, inputs.weight
        self.terms, self.width, self.inner = weight.shape
        self.flat = weight.reshape(self.terms * self.width, self.inner).T  # shape: (n, T·m)
        # The first chunk is the largest.
        largest = each * math.prod(part.stop - part.start for part in chunks[0]) if chunks else 0
        products = self.terms * self.width
        rows = min(max(limit(weight.device) // products, _MIN_ROWS), largest)
        self.buffer = weight.new_empty((rows, products))
        self.h = weight.new_empty((largest, self.inner))
        self.out = weight.new_empty((largest, 1, self.width))
        self.narrow = products <= _NARROW and weight.dtype in (torch.float32, torch.float64)

    def __call__(self, es: slice, bs: slice) -> Tensor:
        """Q h of these edges and samples; the next call overwrites it.  # shape: (Ec, Bc, m)"""
        edges, samples = es.stop - es.start, bs.stop - bs.start
        total = edges * samples
        h = self.inputs.h(es, bs, self.h[:total].view(edges, samples, self.inner)).reshape(total, self.inner)
        f = self.inputs.phi_chunk(es, bs).expand(-1, samples, -1).reshape(total, 1, self.terms)
        out = self.out[:total]
        for rows in cut(total, self.buffer.shape[0]):
            buffer = self.buffer[: rows.stop - rows.start]
            projected = torch.mm(h[rows], self.flat, out=buffer).view(-1, self.terms, self.width)
            if self.narrow:
                message = torch.mul(projected[:, 0], f[rows, 0, :1], out=out[rows, 0])
                for term in range(1, self.terms):
                    message.addcmul_(projected[:, term], f[rows, 0, term, None])
            else:
                torch.bmm(f[rows], projected, out=out[rows])
        return out.view(edges, samples, self.width)


def project_all(inputs: EdgeInputs, out: Tensor) -> Tensor:
    """The message of each edge, into ``out``.  # shape: (E, B, m)"""
    edges, batch, width = out.shape
    chunks = list(row_chunks(edges, batch, width + inputs.weight.shape[2], out.device, inputs.call.incidence.arity))
    project = Projection(inputs, chunks)
    for es, bs in chunks:
        out[es, bs] = project(es, bs)
    return out


def project_max(inputs: EdgeInputs, arg: bool) -> tuple[Tensor, Tensor | None]:
    """The maximum at each factor of A edges, taken while its messages are in the cache.

    Returns:
        values (C, B, m) and, with ``arg``, the edge of the first maximum (C, B, m), else None.
    """
    weight, batch, incidence = inputs.weight, inputs.batch, inputs.call.incidence
    arity, factors, width = incidence.arity, incidence.num_factors, weight.shape[1]
    assert arity
    chunks = list(row_chunks(factors, batch, arity * (width + weight.shape[2]), weight.device))
    project = Projection(inputs, chunks, arity)
    values = weight.new_empty((factors, batch, width))
    edges = weight.new_empty(values.shape, dtype=torch.long) if arg else None
    for cs, bs in chunks:
        es = slice(cs.start * arity, cs.stop * arity)
        messages = project(es, bs).view(cs.stop - cs.start, arity, -1, width)
        if edges is None:
            values[cs, bs] = messages.amax(1)
            continue
        values[cs, bs], place = first_max(messages, spend=True)
        edges[cs, bs] = place.add_(torch.arange(es.start, es.stop, arity).view(-1, 1, 1))
    return values, edges
