"""Places in one piece of memory for tensors that are not all alive at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_ALIGN = 256  # bytes, as tensors of their own have


class Lifetime(NamedTuple):
    """A tensor: its bytes, and the first and the last step that uses it."""

    name: int
    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """Bytes of a part, so that the next one begins as tensors of their own do."""
    return -(-size // _ALIGN) * _ALIGN


def plan(tensors: Iterable[Lifetime]) -> tuple[dict[int, int], int]:
    """Where each tensor begins, and how many bytes there are in all.

    Each is put at the lowest address that no tensor of the same time occupies.
    """
    alive: list[tuple[int, int, int]] = []  # begin, end, last step
    begins, size = {}, 0
    for x in sorted(tensors, key=lambda x: x.first):
        alive = sorted(one for one in alive if one[2] >= x.first)
        begin, length = 0, aligned(x.size)
        for start, end, _ in alive:
            if start - begin >= length:
                break
            begin = max(begin, end)
        alive.append((begin, begin + length, x.last))
        begins[x.name] = begin
        size = max(size, begin + length)
    return begins, size
