"""h_e of some edges and samples, and the chunks they are taken in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.graph import Incidence

# Elements of a chunk's largest temporary: cache-sized on a CPU, few launches on a GPU.
_CHUNK = {"cpu": 1 << 19}
_CHUNK_ACCELERATOR = 1 << 26


@dataclass(frozen=True, eq=False)
class Gather:
    """h_e = σ(a_c + b_i) for some edges and samples, from node-level parts (node, B, n)."""

    a: Tensor
    b: Tensor | None
    incidence: Incidence
    relu: bool

    @property
    def batch(self) -> int:
        """B."""
        return int(self.a.shape[1])

    def __call__(self, edges: slice | Tensor, samples: slice, out: Tensor | None = None) -> Tensor:
        """h of these edges, in ``out`` where it is given and gathered at all.  # shape: (Ec, Bc, n)"""
        every = samples == slice(None) or (samples.start == 0 and samples.stop == self.batch)
        a = self.a if every else self.a[:, samples]
        if self.b is None:
            h = a[edges]
            return h.relu() if self.relu else h
        b = self.b if every else self.b[:, samples]
        h = torch.index_select(b, 0, self.incidence.variable[edges], out=out)
        arity = self.incidence.arity
        if isinstance(edges, slice) and arity and edges.start % arity == 0 and edges.stop % arity == 0:
            whole = a[edges.start // arity : edges.stop // arity]  # the edges of whole factors lie together
            h.view(-1, arity, *h.shape[1:]).add_(whole.unsqueeze(1))
        else:
            h.add_(a.index_select(0, self.incidence.factor[edges]))
        return h.relu_() if self.relu else h


def phi_of(phi: Tensor, es: slice, bs: slice) -> Tensor:
    """φ of these rows.  # shape: (Ec, Bc or 1, T)"""
    return phi[bs, es].transpose(0, 1) if phi.dim() == 3 else phi[es].unsqueeze(1)


def limit(device: torch.device) -> int:
    """How many elements a temporary may have there."""
    return _CHUNK.get(device.type, _CHUNK_ACCELERATOR)


def cut(total: int, size: int) -> Iterator[slice]:
    """0..total in slices of ``size``, the last one shorter."""
    for start in range(0, total, max(size, 1)):
        yield slice(start, min(start + max(size, 1), total))


def row_chunks(
    edges: int, batch: int, each: int, device: torch.device, arity: int | None = None
) -> Iterator[tuple[slice, slice]]:
    """Chunks of edges and samples whose temporaries of ``each`` elements a row stay within the limit."""
    rows = max(limit(device) // max(each, 1), 1)
    size = max(rows // max(batch, 1), 1)
    if arity and size > arity:
        size -= size % arity  # whole factors
    for es in cut(edges, size):
        for bs in cut(batch, rows):
            yield es, bs
