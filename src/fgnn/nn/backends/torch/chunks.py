"""Chunks of edges and samples whose temporaries stay small."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Elements of a chunk's largest temporary: cache-sized on a CPU, few launches on a GPU.
_CHUNK = {"cpu": 1 << 19}
_CHUNK_ACCELERATOR = 1 << 26


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
