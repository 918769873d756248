"""Q(t_e) · h_e for all edges without a matrix per edge, and its gradient, in chunks.

Three ways, one for each way Q may be shared (rows are edges times samples):

- *typed*: one matrix for each type; the edges of a type are one product;
- *matrix*: φ is the same for many samples: build Q for a chunk of edges, use it for all samples;
- *outer*: φ ⊗ h for a chunk of rows, then one product with W of inner length T·n; on a CPU the other way round, all
  W_τ h of a chunk, weighed by φ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fgnn.graph import EdgeTypes
from fgnn.nn.backends.torch.gather import Gather, cut, limit, phi_of, row_chunks
from fgnn.nn.backends.torch.projection import project_all

# From this many samples on, building Q once per edge beats φ ⊗ h for each sample.
_SHARED = 4


def forward(gather: Gather, phi: Tensor | None, types: EdgeTypes | None, weight: Tensor) -> Tensor:
    """The message of each edge.  # shape: (E, B, m)"""
    edges, batch = gather.incidence.num_edges, gather.batch
    count, width, inner = weight.shape
    out = weight.new_empty((edges, batch, width))
    if types is not None:
        flat = weight.transpose(1, 2)  # shape: (K, n, m)
        return _typed_forward(gather, types, flat, out)
    assert phi is not None
    if shares_matrices(phi, batch):
        flat = weight.reshape(count, width * inner)
        for es, parts in _chunks(edges, batch, width * inner, inner, out.device):
            q = (phi[es] @ flat).view(-1, width, inner)
            for part in parts:
                out[es, part] = torch.bmm(gather(es, part), q.transpose(1, 2))
        return out
    if out.is_cpu:
        return project_all(gather, phi, weight, out)
    flat = weight.transpose(1, 2).reshape(count * inner, width)
    for es, bs in row_chunks(edges, batch, count * inner, out.device, gather.incidence.arity):
        outer = _outer(phi_of(phi, es, bs), gather(es, bs))
        out[es, bs] = (outer.flatten(0, 1).flatten(1) @ flat).view(outer.shape[0], outer.shape[1], width)
    return out


def backward(
    upstream: Tensor,  # shape: (E, B, m)
    gather: Gather,
    phi: Tensor | None,
    types: EdgeTypes | None,
    weight: Tensor,
    wants: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients at σ's argument (E, B, n), at φ and at W; None for those not wanted."""
    edges, batch = gather.incidence.num_edges, gather.batch
    count, width, inner = weight.shape
    want_node, want_phi, want_weight = wants[0] or wants[1], wants[2], wants[3]
    d_node = weight.new_empty((edges, batch, inner)) if want_node else None
    d_phi = torch.zeros_like(phi) if want_phi and phi is not None else None
    if types is not None:
        return d_node, None, _typed_backward(upstream, gather, types, weight, d_node, want_weight)
    assert phi is not None
    if shares_matrices(phi, batch):
        flat = weight.reshape(count, width * inner)
        d_weight = torch.zeros_like(flat) if want_weight else None
        for es, parts in _chunks(edges, batch, width * inner, inner, weight.device):
            q = (phi[es] @ flat).view(-1, width, inner)
            d_q = torch.zeros_like(q)
            for part in parts:
                h, g = gather(es, part), upstream[es, part]
                if d_node is not None:
                    d_node[es, part] = through(torch.bmm(g, q), h, gather.relu)
                d_q += torch.bmm(g.transpose(1, 2), h)
            if d_phi is not None:
                d_phi[es] = d_q.flatten(1) @ flat.T
            if d_weight is not None:
                d_weight.addmm_(phi[es].T, d_q.flatten(1))
        return d_node, d_phi, None if d_weight is None else d_weight.view_as(weight)
    flat = weight.transpose(0, 1).reshape(width, count * inner)
    d_flat = torch.zeros_like(flat) if want_weight else None
    for es, bs in row_chunks(edges, batch, count * inner, weight.device):
        h, f = gather(es, bs), phi_of(phi, es, bs)
        g = upstream[es, bs].flatten(0, 1)
        if d_flat is not None:
            d_flat.addmm_(g.T, _outer(f, h).flatten(0, 1).flatten(1))
        if d_node is None and d_phi is None:
            continue
        d_outer = (g @ flat).view(-1, count, inner)  # shape: (rows, T, n)
        if d_node is not None:
            f_rows = f.expand(-1, h.shape[1], -1).flatten(0, 1).unsqueeze(1)
            d_node[es, bs] = through(torch.bmm(f_rows, d_outer).view_as(h), h, gather.relu)
        if d_phi is not None:
            found = torch.bmm(d_outer, h.flatten(0, 1).unsqueeze(2)).view(h.shape[0], h.shape[1], count)
            if phi.dim() == 3:
                d_phi[bs, es] = found.transpose(0, 1)
            else:
                d_phi[es] += found.sum(1)
    return d_node, d_phi, None if d_flat is None else d_flat.view(width, count, inner).transpose(0, 1)


def shares_matrices(phi: Tensor, batch: int) -> bool:
    """Whether to build Q for each edge of a chunk, once for all samples."""
    return phi.dim() == 2 and batch >= _SHARED


def _typed_forward(gather: Gather, types: EdgeTypes, flat: Tensor, out: Tensor) -> Tensor:
    """Rows in the order of types, each type one product; then back into edge order."""
    batch, width = out.shape[1:]
    for kinds, start, stop in _segments(types, batch * (flat.shape[1] + width), out.device):
        h = gather(types.order[start:stop], slice(None))  # shape: (rows, B, n)
        made = torch.bmm(h.reshape(kinds.stop - kinds.start, -1, flat.shape[1]), flat[kinds])
        out[start:stop] = made.view(-1, batch, width)
    return out.index_select(0, types.rank)


def _typed_backward(
    upstream: Tensor, gather: Gather, types: EdgeTypes, weight: Tensor, d_node: Tensor | None, want_weight: bool
) -> Tensor | None:
    batch, width = upstream.shape[1:]
    inner = weight.shape[2]
    d_weight = torch.zeros_like(weight) if want_weight else None
    for kinds, start, stop in _segments(types, batch * (inner + width), upstream.device):
        order = types.order[start:stop]
        h = gather(order, slice(None))
        g = upstream.index_select(0, order).view(kinds.stop - kinds.start, -1, width)
        if d_node is not None:
            back = torch.bmm(g, weight[kinds]).view_as(h)
            d_node.index_copy_(0, order, through(back, h, gather.relu))
        if d_weight is not None:
            d_weight[kinds] += torch.bmm(g.transpose(1, 2), h.reshape(kinds.stop - kinds.start, -1, inner))
    return d_weight


def through(grad: Tensor, h: Tensor, relu: bool) -> Tensor:
    """The gradient at σ's argument, from that at h = σ(·)."""
    return grad * (h > 0) if relu else grad


def _outer(phi: Tensor, h: Tensor) -> Tensor:
    """φ ⊗ h.  # shape: (Ec, Bc, T, n)"""
    return phi.unsqueeze(3) * h.unsqueeze(2)


def _chunks(edges: int, batch: int, each: int, inner: int, device: torch.device) -> Iterator[tuple[slice, list[slice]]]:
    """Chunks of edges whose matrices stay within the limit, each with its chunks of samples."""
    size = max(limit(device) // max(each, batch * inner, 1), 1)
    for es in cut(edges, size):
        yield es, list(cut(batch, max(limit(device) // (inner * (es.stop - es.start)), 1)))


def _segments(types: EdgeTypes, each: int, device: torch.device) -> Iterator[tuple[slice, int, int]]:
    """(types, start, stop) in the order of types: several types at once where all have equally many edges."""
    rows = max(limit(device) // max(each, 1), 1)
    if types.even and types.counts[0] > 0 and types.counts[0] * 2 <= rows:
        size = types.counts[0]
        for kinds in cut(types.num_types, rows // size):
            yield kinds, kinds.start * size, kinds.stop * size
        return
    start = 0
    for kind, size in enumerate(types.counts):
        for part in cut(size, rows):
            yield slice(kind, kind + 1), start + part.start, start + part.stop
        start += size
