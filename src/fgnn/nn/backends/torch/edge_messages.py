"""The message Q(t_e) · h_e of each edge, forward and backward, in chunks.

Two ways to compute it, by how Q is shared (rows are edges times samples); ``typed_tiles`` has edges of few types:

- *shared*: many samples have the same φ: build Q for a chunk of edges, use it for all samples;
- *outer*: φ ⊗ h for a chunk of rows, then one product with W of inner length T·n. On a CPU, all W_τ h of a few
  rows in a buffer that stays in the cache, weighted by φ, are faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fgnn.nn.backends.torch.chunks import MIN_ROWS, EdgeInputs, cut, limit, row_chunks
from fgnn.nn.backends.torch.reduce import first_max

# From this many samples on, building Q once per edge beats φ ⊗ h for each sample.
_SHARED = 4
# Up to this many products a row, adding them up term by term is five times faster than a batch of tiny products.
_NARROW = 512

EdgeGradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def forward(inputs: EdgeInputs) -> Tensor:
    """The message of each edge.  # shape: (E, B, m)"""
    edges, batch, weight = inputs.call.incidence.num_edges, inputs.batch, inputs.weight
    terms, width, inner = weight.shape
    out = weight.new_empty((edges, batch, width))
    if shares_matrices(inputs):
        phi = inputs.coefficients
        flat = weight.reshape(terms, width * inner)
        for es, parts in _shared_chunks(edges, batch, width * inner, inner, out.device):
            q = (phi[es] @ flat).view(-1, width, inner)
            for part in parts:
                out[es, part] = torch.bmm(inputs.h(es, part), q.transpose(1, 2))
        return out
    if out.is_cpu:
        return project_all(inputs, out)
    flat = weight.transpose(1, 2).reshape(terms * inner, width)
    for es, bs in row_chunks(edges, batch, terms * inner, out.device, inputs.call.incidence.arity):
        outer = _outer(inputs.phi_chunk(es, bs), inputs.h(es, bs))
        out[es, bs] = (outer.flatten(0, 1).flatten(1) @ flat).view(outer.shape[0], outer.shape[1], width)
    return out


def backward(upstream: Tensor, inputs: EdgeInputs, wants: Sequence[bool]) -> EdgeGradients:
    """Gradients at σ's argument (E, B, n), at φ and at W, from those at the messages; None for those not wanted."""
    edges, batch = upstream.shape[:2]
    weight = inputs.weight
    d_node = weight.new_empty((edges, batch, weight.shape[2])) if wants[0] or wants[1] else None
    d_phi = torch.zeros_like(inputs.coefficients) if wants[2] else None
    run = _shared_backward if shares_matrices(inputs) else _outer_backward
    return d_node, d_phi, run(upstream, inputs, d_node, d_phi, wants[3])


def shares_matrices(inputs: EdgeInputs) -> bool:
    """Whether to build Q for each edge of a chunk, once for all samples."""
    return inputs.phi is not None and inputs.phi.dim() == 2 and inputs.batch >= _SHARED


def _shared_backward(
    upstream: Tensor, inputs: EdgeInputs, d_node: Tensor | None, d_phi: Tensor | None, want_weight: bool
) -> Tensor | None:
    """Fill ``d_node`` and ``d_phi``; return the gradient at W."""
    phi, weight = inputs.coefficients, inputs.weight
    edges, batch, width = upstream.shape
    terms, _, inner = weight.shape
    flat = weight.reshape(terms, width * inner)
    d_weight = torch.zeros_like(flat) if want_weight else None
    for es, parts in _shared_chunks(edges, batch, width * inner, inner, weight.device):
        q = (phi[es] @ flat).view(-1, width, inner)
        d_q = torch.zeros_like(q)
        for part in parts:
            h, g = inputs.h(es, part), upstream[es, part]
            if d_node is not None:
                d_node[es, part] = inputs.through_activation(torch.bmm(g, q), h)
            d_q += torch.bmm(g.transpose(1, 2), h)
        if d_phi is not None:
            d_phi[es] = d_q.flatten(1) @ flat.T
        if d_weight is not None:
            d_weight.addmm_(phi[es].T, d_q.flatten(1))
    return None if d_weight is None else d_weight.view_as(weight)


def _outer_backward(
    upstream: Tensor, inputs: EdgeInputs, d_node: Tensor | None, d_phi: Tensor | None, want_weight: bool
) -> Tensor | None:
    """Fill ``d_node`` and ``d_phi``; return the gradient at W."""
    weight = inputs.weight
    edges, batch, width = upstream.shape
    terms, _, inner = weight.shape
    flat = weight.transpose(0, 1).reshape(width, terms * inner)
    d_flat = torch.zeros_like(flat) if want_weight else None
    for es, bs in row_chunks(edges, batch, terms * inner, weight.device):
        h, f = inputs.h(es, bs), inputs.phi_chunk(es, bs)
        g = upstream[es, bs].flatten(0, 1)
        if d_flat is not None:
            d_flat.addmm_(g.T, _outer(f, h).flatten(0, 1).flatten(1))
        if d_node is None and d_phi is None:
            continue
        d_outer = (g @ flat).view(-1, terms, inner)  # shape: (rows, T, n)
        if d_node is not None:
            f_rows = f.expand(-1, h.shape[1], -1).flatten(0, 1).unsqueeze(1)
            d_node[es, bs] = inputs.through_activation(torch.bmm(f_rows, d_outer).view_as(h), h)
        if d_phi is not None:
            d_f = torch.bmm(d_outer, h.flatten(0, 1).unsqueeze(2)).view(h.shape[0], h.shape[1], terms)
            if d_phi.dim() == 3:
                d_phi[bs, es] = d_f.transpose(0, 1)
            else:
                d_phi[es] += d_f.sum(1)
    return None if d_flat is None else d_flat.view(width, terms, inner).transpose(0, 1)


def _outer(phi: Tensor, h: Tensor) -> Tensor:
    """φ ⊗ h.  # shape: (Ec, Bc, T, n)"""
    return phi.unsqueeze(3) * h.unsqueeze(2)


def _shared_chunks(
    edges: int, batch: int, each: int, inner: int, device: torch.device
) -> Iterator[tuple[slice, list[slice]]]:
    """Chunks of edges whose matrices stay within the limit, each with its chunks of samples."""
    size = max(limit(device) // max(each, batch * inner, 1), 1)
    for es in cut(edges, size):
        yield es, list(cut(batch, max(limit(device) // (inner * (es.stop - es.start)), 1)))


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
        rows = min(max(limit(weight.device) // products, MIN_ROWS), largest)
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
        edges[cs, bs] = place.add_(torch.arange(es.start, es.stop, arity, device=place.device).view(-1, 1, 1))
    return values, edges
