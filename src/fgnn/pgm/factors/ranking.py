"""The k-th largest values along the first axis, for messages that count ones."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

# A sort does less work than the network beyond this many values, and has less overhead below this many columns.
_WIDEST_NETWORK = 32
_FEWEST_COLUMNS = 512


def ranked(values: Tensor, ranks: tuple[int, ...] | None = None) -> Tensor | list[Tensor]:
    """The values of each column in descending order: ``ranked(d)[k - 1]`` is the k-th largest, shape (...).

    Many columns of few values go through a sorting network, whose comparators are elementwise maxima and minima over
    all columns at once.

    Args:
        values: Shape (n, ...).
        ranks: The ranks needed, from 1, all by default; others may be undefined in the result.
    """
    n = int(values.shape[0])
    columns = values[0].numel() if n else 0
    if n > _WIDEST_NETWORK or (columns < _FEWEST_COLUMNS and values.device.type == "cpu"):
        return values.sort(dim=0, descending=True).values
    wires = list(values.unbind(0))
    for i, j, above, below in _comparators(n, ranks):
        high = torch.maximum(wires[i], wires[j]) if above else wires[i]
        wires[j] = torch.minimum(wires[i], wires[j]) if below else wires[j]
        wires[i] = high
    return wires


@lru_cache(maxsize=256)
def _comparators(n: int, ranks: tuple[int, ...] | None) -> tuple[tuple[int, int, bool, bool], ...]:
    """Batcher's odd-even merge sort, descending, without comparators that no required rank depends on.

    Each is (i, j, whether the maximum at wire i is needed, whether the minimum at wire j is).
    """
    pairs: list[tuple[int, int]] = []
    p = 1
    while p < n:
        k = p
        while k:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    needed = set(range(n)) if ranks is None else {r - 1 for r in ranks}
    comparators: list[tuple[int, int, bool, bool]] = []
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            comparators.append((i, j, i in needed, j in needed))
            needed |= {i, j}
    return tuple(reversed(comparators))
