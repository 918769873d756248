"""The k-th largest along the first axis: what a budget's messages need of a sort."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

# Beyond this many values a sort does less work than the network; below this many columns it has less overhead.
_WIDEST_NETWORK = 32
_FEWEST_COLUMNS = 512


def ranked(values: Tensor, ranks: tuple[int, ...] | None = None) -> Tensor | list[Tensor]:
    """The values of each column in descending order: ``ranked(d)[k - 1]`` is the k-th largest, shape (...).

    Many columns of few values are put through a sorting network, whose comparators are elementwise maxima and minima
    over all columns at once; ``ranks`` (from 1) names the only places needed, and the others of the list are then
    undefined.

    Args:
        values: Shape (n, ...).
        ranks: Which places of the order are wanted; all by default.
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
    """Batcher's odd-even merge sort, descending, less the comparators no wanted rank depends on.

    Each is (i, j, whether wire i's maximum is needed, whether wire j's minimum is).
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
    wanted = set(range(n)) if ranks is None else {r - 1 for r in ranks}
    kept: list[tuple[int, int, bool, bool]] = []
    for i, j in reversed(pairs):
        if i in wanted or j in wanted:
            kept.append((i, j, i in wanted, j in wanted))
            wanted |= {i, j}
    return tuple(reversed(kept))
