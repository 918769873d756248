"""The kernel that describes rows of edges, for graphs that are made at every step."""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "destinations", "steps"])
def describe_rows(ptr, row_ptr, table, rows, destinations, steps, W: tl.constexpr, B: tl.constexpr):
    """Destination, start, stop and number of earlier edges of B rows, (4, rows); W places a row.

    Row r is of the last destination whose rows begin at r or before; ``steps`` halve all destinations down to one.
    """
    row = tl.program_id(0) * B + tl.arange(0, B)
    live = row < rows
    row = row.to(ptr.dtype.element_ty)
    found = tl.zeros_like(row)
    beyond = found + destinations
    for _ in range(steps):
        middle = (found + beyond) // 2
        begun = tl.load(row_ptr + middle, mask=live, other=0) <= row
        found = tl.where(begun, middle, found)
        beyond = tl.where(begun, beyond, middle)
    last = tl.load(ptr + found + 1, mask=live, other=0)
    before = (row - tl.load(row_ptr + found, mask=live, other=0)) * W
    start = tl.minimum(tl.load(ptr + found, mask=live, other=0) + before, last)
    at = table + tl.program_id(0) * B + tl.arange(0, B).to(tl.int64)
    tl.store(at, found, mask=live)
    tl.store(at + rows, start, mask=live)
    tl.store(at + 2 * rows, tl.minimum(start + W, last), mask=live)
    tl.store(at + 3 * rows, before, mask=live)
