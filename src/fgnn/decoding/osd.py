"""Ordered statistics decoding: take the bits that belief propagation doubts most as dependent, and solve for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.decoding.code import Bits, Code
from fgnn.runtime.jit import compiled

Array = NDArray[Any]


@compiled
def _reduce(rows: Array, s: Array, columns: int, pivots: Array) -> int:
    """Bring packed rows, and the syndrome with them, to reduced echelon form; return the rank.

    Pivots are the first independent columns; ``pivots[k]`` is that of row k.
    """
    m, words = rows.shape
    found = 0
    for column in range(columns):
        word, bit = column >> 6, np.uint64(column & 63)
        pivot = -1
        for i in range(found, m):
            if (rows[i, word] >> bit) & np.uint64(1):
                pivot = i
                break
        if pivot < 0:
            continue
        if pivot != found:
            for w in range(words):
                rows[pivot, w], rows[found, w] = rows[found, w], rows[pivot, w]
            s[pivot], s[found] = s[found], s[pivot]
        for i in range(m):
            if i != found and (rows[i, word] >> bit) & np.uint64(1):
                for w in range(word, words):
                    rows[i, w] ^= rows[found, w]
                s[i] ^= s[found]
        pivots[found] = column
        found += 1
        if found == m:
            break
    return found


@compiled
def _sweep(rows: Array, s: Array, rank: int, pivots: Array, free: Array, cost: Array, order: int) -> tuple[int, int]:
    """Find the cheapest word with at most one free bit set, or two of the first ``order``; return those bits or -1.

    ``cost`` is that of each column; a free bit that is set flips the dependent bits in its column.
    """
    change = np.zeros(len(free), np.float64)
    for i in range(rank):
        gain = -cost[pivots[i]] if s[i] else cost[pivots[i]]
        for k in range(len(free)):
            column = free[k]
            if (rows[i, column >> 6] >> np.uint64(column & 63)) & np.uint64(1):
                change[k] += gain
    best, first, second = 0.0, -1, -1
    for k in range(len(free)):
        change[k] += cost[free[k]]
        if change[k] < best:
            best, first, second = change[k], free[k], -1
    for a in range(min(order, len(free))):
        for b in range(a + 1, min(order, len(free))):
            total = change[a] + change[b]
            u, v = free[a], free[b]
            # bits that both flip stay as they were
            for i in range(rank):
                x = (rows[i, u >> 6] >> np.uint64(u & 63)) & (rows[i, v >> 6] >> np.uint64(v & 63)) & np.uint64(1)
                if x:
                    total -= 2 * (-cost[pivots[i]] if s[i] else cost[pivots[i]])
            if total < best:
                best, first, second = total, u, v
    return first, second


@compiled
def _solve(
    starts: Array, bits: Array, order: Array, place: Array, syndrome: Array, llr: Array, depth: int, out: Array
) -> bool:
    """Write the word of one shot to ``out``; return whether the syndrome has one."""
    m, n = len(starts) - 1, len(order)
    rows = np.zeros((m, (n + 63) >> 6), np.uint64)
    for c in range(m):
        for e in range(starts[c], starts[c + 1]):
            column = place[bits[e]]
            rows[c, column >> 6] |= np.uint64(1) << np.uint64(column & 63)
    s = syndrome.copy()
    pivots = np.zeros(m, np.int64)
    rank = _reduce(rows, s, n, pivots)
    for i in range(rank, m):
        if s[i]:
            return False
    out[:] = 0
    for i in range(rank):
        out[order[pivots[i]]] = s[i]
    if depth < 0:
        return True
    used = np.zeros(n, np.uint8)
    for i in range(rank):
        used[pivots[i]] = 1
    free = np.flatnonzero(used == 0)
    cost = np.zeros(n, np.float64)
    for k in range(n):
        cost[k] = llr[order[k]]
    first, second = _sweep(rows, s, rank, pivots, free, cost, depth)
    for column in (first, second):
        if column >= 0:
            out[order[column]] ^= 1
            for i in range(rank):
                out[order[pivots[i]]] ^= (rows[i, column >> 6] >> np.uint64(column & 63)) & np.uint64(1)
    return True


def ordered_statistics(
    code: Code, llr: NDArray[Any], syndromes: Bits, posterior: NDArray[Any], order: int | None
) -> tuple[Bits, NDArray[np.bool_]]:
    """Return the word of every shot, and whether there is one.

    The word is written as the hard decision of the prior plus an error e with cost Σ |llr_i| e_i. Columns are ordered
    by the posterior of e, likely errors first; the first independent ones depend on the others, which are zero
    (``order=None``, OSD-0), or the best of single errors and of pairs among the first ``order`` (combination sweep).

    Args:
        llr: Priors of each shot, or one row for all.  # shape: (1 or B, bits)
        syndromes: Of every shot.  # shape: (B, checks)
        posterior: Log-likelihood ratios after belief propagation.  # shape: (B, bits)
    """
    hard = (llr < 0).astype(np.uint8)
    base = code.syndrome(hard)
    words, solved = np.zeros((len(syndromes), code.num_bits), np.uint8), np.zeros(len(syndromes), np.bool_)
    stop = threading.Event()

    def one(shot: int) -> None:
        if stop.is_set():
            return
        row = shot if len(llr) > 1 else 0
        ratio = np.where(hard[row], -posterior[shot], posterior[shot])
        columns = np.argsort(ratio, kind="stable")
        place = np.empty_like(columns)
        place[columns] = np.arange(len(columns))
        cost = np.abs(llr[row]).astype(np.float64)
        depth = -1 if order is None else order
        solved[shot] = _solve(
            code.starts, code.bits, columns, place, syndromes[shot] ^ base[row], cost, depth, words[shot]
        )
        words[shot] ^= hard[row]

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        try:
            list(pool.map(one, range(len(syndromes))))
        except BaseException:
            stop.set()
            raise
    return words, solved
