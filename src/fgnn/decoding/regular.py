"""Random regular codes, and how to write a code to a file."""

from __future__ import annotations

import numpy as np

from fgnn.decoding.code import Code


def regular_code(bits: int, column: int, row: int, seed: int = 0) -> Code:
    """A random code whose bits are in ``column`` checks and whose checks have ``row`` bits.

    Edges are drawn one bit at a time towards the checks with the most room, never twice to one check, and where
    possible to checks that share no bit yet, so that the graph has few short cycles.
    """
    if bits * column % row or row > bits:
        raise ValueError(
            f"Expected a multiple of {row} edges and at least {row} bits (got {bits} bits, {column} checks each)"
        )
    checks = bits * column // row
    for attempt in range(100):
        code = _draw(bits, column, row, checks, np.random.default_rng([seed, attempt]))
        if code is not None:
            return code
    raise ValueError(f"no regular code of {bits} bits was found")


def _draw(bits: int, column: int, row: int, checks: int, rng: np.random.Generator) -> Code | None:
    room = np.full(checks, row)
    shared = np.zeros((checks, checks), np.bool_)
    columns: list[list[int]] = []
    for _ in range(bits):
        chosen: list[int] = []
        for _ in range(column):
            taken = np.isin(np.arange(checks), chosen)
            cycle = shared[chosen].any(0) if chosen else taken
            order = np.lexsort((rng.random(checks), -room, cycle, taken | (room == 0)))
            best = int(order[0])
            if taken[best] or room[best] == 0:
                return None
            chosen.append(best)
            room[best] -= 1
        shared[np.ix_(chosen, chosen)] = True
        columns.append(sorted(chosen))
    return Code.of_columns(columns, checks)


def alist(code: Code) -> str:
    """The text of an ``.alist`` file."""
    rows: list[list[int]] = [[] for _ in range(code.num_checks)]
    columns: list[list[int]] = [[] for _ in range(code.num_bits)]
    for c, i in zip(code.checks.tolist(), code.bits.tolist(), strict=True):
        rows[c].append(i + 1)
        columns[i].append(c + 1)
    sizes = [[len(x) for x in columns], [len(x) for x in rows]]
    most = [max(size, default=0) for size in sizes]
    lists = [x + [0] * (most[k] - len(x)) for k, part in enumerate((columns, rows)) for x in part]
    lines = [[code.num_bits, code.num_checks], most, *sizes, *lists]
    return "\n".join(" ".join(map(str, line)) for line in lines) + "\n"
