"""Fixed choices of tile sizes and precision: fast first call, no autotuning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from fgnn.runtime.float32 import allows_tf32
from fgnn.runtime.triton_support import power_of_two

# Most entries of the buffer for partial sums of dW.
PARTIALS = 1 << 23


@dataclass(frozen=True)
class Tile:
    """One launch: lines of a tile, columns of h and of the message, warps and pipeline stages of a program."""

    lines: int
    inner: int
    columns: int
    warps: int
    stages: int


@cache
def block(size: int, most: int) -> int:
    """A power of two that covers ``size``, at least 16 (the matrix units' minimum) and at most ``most``."""
    return min(max(power_of_two(size), 16), most)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@cache
def dtype_of(dtype: torch.dtype) -> Any:
    """Triton's name for a dtype."""
    import triton.language as tl

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


def precision_of(dtype: torch.dtype) -> str:
    """How float32 products are computed: in TF32 if torch's matmul precision allows it, else as three TF32 products.

    Three products of high and low parts match float32's precision and are several times faster than float32 units.
    """
    if dtype != torch.float32:
        return "ieee"
    return "tf32" if allows_tf32() else "tf32x3"


@cache
def processors(device: torch.device) -> int:
    """The number of multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2


@cache
def roomy(device: torch.device) -> bool:
    """Whether a program may use 160 KiB of shared memory or more, for wide tiles and deep pipelines."""
    data_centre = ((8, 0), (9, 0), (10, 0), (10, 3))
    return device.type != "cuda" or torch.cuda.get_device_capability(device) in data_centre


@lru_cache(1024)
def rows_tile(kind: str, n: int, m: int, lines: int, dtype: torch.dtype, device: torch.device) -> Tile:
    """For the kernels over rows; ``kind`` is forward, backward or weight, ``lines`` the number of places for edges."""
    half, wide = dtype != torch.float32, roomy(device)
    if kind == "forward":
        columns, inner = block(m, 128 if wide else 64), block(n, 64 if half else 32)
        size, warps = 128, 4 if columns <= 64 else 8
    elif kind == "backward":
        # if all columns fit, the gradient of a tile is gathered once
        columns, inner = block(m, 256 if half and wide else 64), block(n, 64)
        size, warps = 64, 4
    else:
        columns, inner = block(m, 64), block(n, 64)
        size, warps = 64, 8
    while size > 32 and lines < size * processors(device):
        size //= 2
        warps = 4
    if kind == "forward":
        return Tile(size, inner, columns, warps, 1)  # which loads ahead itself
    return Tile(size, inner, columns, warps, 3 if kind != "weight" and half and wide and columns <= 128 else 2)


def weight_terms(terms: int, dtype: torch.dtype) -> int:
    """How many dW_τ one program sums: they share the gathers, but each takes registers."""
    return min(power_of_two(terms), 8 if dtype != torch.float32 else 4)


@lru_cache(1024)
def typed_tile(kind: str, n: int, m: int, items: int, dtype: torch.dtype, device: torch.device) -> Tile:
    """For the kernels over items; ``kind`` is forward, nodes, places or weight."""
    half, wide = dtype != torch.float32, roomy(device)
    columns, inner = block(m, 128 if half and wide else 64), block(n, 64 if half else 32)
    warps = 8 if columns > 64 and kind in ("nodes", "weight") else 4
    return Tile(block(items, 64), inner, columns, warps, 3 if kind == "nodes" and wide else 2)


def splits_of(programs: int, steps: int, entries: int, device: torch.device) -> int:
    """Into how many shares to split a sum over ``steps``: enough programs, but a small buffer."""
    wanted = cdiv(processors(device), max(programs, 1))
    return max(1, min(wanted, steps, PARTIALS // max(entries, 1)))
