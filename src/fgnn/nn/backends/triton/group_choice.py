"""Device functions of kernels that serve up to four groups in one launch: which group a program works for.

The arguments of a group are chosen, not its code: a kernel is compiled once, however many groups it serves.
"""

# mypy: ignore-errors
# (Triton's language has no type annotations for these arguments)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pick(k, x0, x1, x2, x3, G: tl.constexpr):
    """The argument of group k of G."""
    x = x0
    if G > 1:
        x = tl.where(k == 1, x1, x)
    if G > 2:
        x = tl.where(k == 2, x2, x)
    if G > 3:
        x = tl.where(k == 3, x3, x)
    return x


@triton.jit
def group_of(v, V0, V1, V2, G: tl.constexpr):
    """The group of the v-th node, and its number there, if the first group has V0 nodes, the next V1 and so on."""
    k = v * 0
    if G > 1:
        k += (v >= V0).to(tl.int32)
    if G > 2:
        k += (v >= V0 + V1).to(tl.int32)
    if G > 3:
        k += (v >= V0 + V1 + V2).to(tl.int32)
    if G > 1:
        v -= tl.where(k > 0, V0, 0)
    if G > 2:
        v -= tl.where(k > 1, V1, 0)
    if G > 3:
        v -= tl.where(k > 2, V2, 0)
    return k, v
