"""The edges of a code as dense tables, in the order in which a GPU reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.decoding.code import Code

_WARP = 32
_FOUR = 4  # edges that a thread loads at once
PER_WORD = 16  # edges of a min-sum check in a word of codes

Order = NDArray[np.int64]


@dataclass(frozen=True)
class Wiring:
    """Checks and bits by falling degree, so that the threads of a warp have equally many edges.

    Check M and bit N stand for those that a shorter row lacks.

    Attributes:
        check_bits: The bits of each check, in fours.  # shape: (fours, checks, padded, 4)
        bit_slots: The edges of each bit as ``check + (place << shift)``, in fours.  # shape: (fours, bits, padded, 4)
        check_degrees: Places of every 32 checks.
        bit_degrees: Places of every 32 bits.
        level_starts: Checks of one level share no bit; with the layered schedule only.
        check_order: The check of the code at each place here.
        bit_order: The bit of the code at each place here.
        shift: Binary digits of a check's number.
    """

    check_bits: Tensor
    bit_slots: Tensor
    check_degrees: Tensor
    bit_degrees: Tensor
    level_starts: Tensor
    check_order: Tensor
    bit_order: Tensor
    shift: int


@lru_cache(maxsize=8)
def wire(code: Code, device: torch.device, layered: bool) -> Wiring:
    """Build the tables of a code, once."""
    m, n, degrees = code.num_checks, code.num_bits, np.diff(code.starts)
    bit_starts, by_bit = code.by_bit
    level = _levels(code) if layered else np.zeros(m, np.int64)
    check_order = np.lexsort((-degrees, level))
    bit_order = np.argsort(-np.diff(bit_starts), kind="stable")
    new_check, new_bit = np.argsort(check_order), np.argsort(bit_order)
    place = np.arange(code.num_edges) - code.starts[code.checks]
    rows = _up(int(degrees.max(initial=1)), _FOUR)
    width = _up(m + 1, _WARP)
    check_bits = np.full((rows, width), n, np.int64)
    check_bits[place, new_check[code.checks]] = new_bit[code.bits]
    turn = np.arange(code.num_edges) - bit_starts[code.bits[by_bit]]
    shift = m.bit_length()
    slots = np.full((_up(int(turn.max(initial=0)) + 1, _FOUR), _up(n, _WARP)), m, np.int64)
    slots[turn, new_bit[code.bits[by_bit]]] = new_check[code.checks[by_bit]] + (place[by_bit] << shift)
    starts = np.searchsorted(level[check_order], np.arange(level.max(initial=0) + 2))

    def narrow(table: Order) -> Tensor:
        kind = np.uint16 if table.max(initial=0) < 1 << 16 else np.int32
        fours = table.astype(kind).reshape(-1, _FOUR, table.shape[1]).swapaxes(1, 2)
        return torch.from_numpy(np.ascontiguousarray(fours)).to(device)

    def whole(values: Order) -> Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(device)

    return Wiring(
        narrow(check_bits), narrow(slots), whole(-(-_by_warp(degrees[check_order]) // _FOUR) * _FOUR),
        whole(_by_warp(np.diff(bit_starts)[bit_order])), whole(starts), torch.from_numpy(check_order).to(device),
        whole(bit_order), shift,
    )  # fmt: skip


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _by_warp(degrees: Order) -> Order:
    """The largest of every 32 degrees."""
    padded = np.zeros(_up(max(1, len(degrees)), _WARP), np.int64)
    padded[: len(degrees)] = degrees
    return np.asarray(padded.reshape(-1, _WARP).max(1))


def _levels(code: Code) -> Order:
    """Number the checks so that those of a level may be updated together: each comes after all that it must wait for.

    The result of a sweep is then that of one check after the other.
    """
    level, last = np.zeros(code.num_checks, np.int64), np.full(code.num_bits, -1)
    for c in range(code.num_checks):
        bits = code.bits[code.starts[c] : code.starts[c + 1]]
        level[c] = last[bits].max(initial=-1) + 1
        last[bits] = level[c]
    return level
