"""One launch for several recorded operations: sums of shares, and sums of two tensors.

A launch of fewer than it has room for names the first once more, without entries: kernels are then compiled once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fgnn.nn.backends.triton.tape import Empty, Launch, Operation, Place, contiguous
from fgnn.nn.backends.triton.tile_sizes import cdiv
from fgnn.runtime.kernel_launch import constants, prepared

SUMS, ADDITIONS = 8, 4  # in a launch
_ROWS, _COLUMNS, _ENTRIES = 32, 64, 2048  # of a program


def sums(device: torch.device, steps: Sequence[Operation]) -> list[Empty | Launch]:
    """y = Σ_r x_r for each of up to ``SUMS`` operations ``x.sum(0)``."""
    from fgnn.nn.backends.triton.joint_kernels import sum_shares

    found, args, tiles = [], [], 0
    for step in steps:
        x, y = step.args[0], _whole(step.buffers[0], step.args[0].shape[1:], step.args[0].dtype)
        columns = math.prod(y.shape)
        tiles += cdiv(columns, _COLUMNS)
        found.append(y)
        args += [x, y, x.shape[0], columns]
    args += [*args[:2], 0, 0] * (SUMS - len(steps))
    options = constants(R=_ROWS, C=_COLUMNS, num_warps=8)
    return [*map(_allocated, found), _launch(sum_shares, tiles, args, options, device)]


def additions(device: torch.device, steps: Sequence[Operation]) -> list[Empty | Launch]:
    """y = a + b for each of up to ``ADDITIONS`` operations."""
    from fgnn.nn.backends.triton.joint_kernels import add_pairs

    found, args, tiles = [], [], 0
    for step in steps:
        a, b = step.args
        y, count = _whole(step.buffers[0], a.shape, a.dtype), math.prod(a.shape)
        tiles += cdiv(count, _ENTRIES)
        found.append(y)
        args += [a, b, y, count]
    args += [*args[:3], 0] * (ADDITIONS - len(steps))
    options = constants(B=_ENTRIES, num_warps=8)
    return [*map(_allocated, found), _launch(add_pairs, tiles, args, options, device)]


def _whole(buffer: int, shape: Sequence[int], dtype: torch.dtype) -> Place:
    return Place(buffer, 0, tuple(shape), contiguous(shape), dtype)


def _allocated(place: Place) -> Empty:
    return Empty(place.buffer, place.shape, place.dtype)


def _launch(kernel: Any, tiles: int, args: list[Any], options: Mapping[str, Any], device: torch.device) -> Launch:
    """The launch of a kernel, found out by one on other memory."""
    stands = {x: torch.zeros(x.shape, dtype=x.dtype, device=device) for x in args if isinstance(x, Place)}
    launched = prepared(kernel, (tiles,), [stands.get(x, x) for x in args], options)
    if launched is None:
        raise RuntimeError("Expected memory that kernels can read (got an address that is not aligned)")
    places = [(slot, x) for slot, x in enumerate(args) if isinstance(x, Place)]
    return Launch(launched, [None if isinstance(x, Place) else x for x in args], places)
