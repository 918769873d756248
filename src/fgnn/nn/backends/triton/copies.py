"""Copies, in a recorded pass, of what launches have filled: they fill the copy itself."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch

from fgnn.nn.backends.triton.tape import ALIGNED, Empty, Operation, Place, Step, Tape, contiguous, uses

_aten = torch.ops.aten


def merge_copies(tape: Tape, results: Collection[int]) -> dict[int, tuple[int, int]]:
    """Drop copies of whole tensors into results; which buffers are parts of which others now, and at which byte.

    Args:
        results: Buffers that the caller gets. What is copied there must not be one, nor be used later.
    """
    allocated = tape.allocated
    last = {k: at for at, step in enumerate(tape.steps) for k in uses(step)}
    parts: dict[int, tuple[int, int]] = {}
    touched: set[int] = set()  # by more than an allocation and such copies
    filled: list[tuple[int, int, int]] = []  # the result, and the bytes from and to which copies fill it
    steps: list[Step] = []
    for now, step in enumerate(tape.steps):
        copy = _copy(step)
        if copy is not None:
            to, source = copy
            begin, end = to.offset, to.offset + _size(to)
            apart = all(k != to.buffer or end <= start or stop <= begin for k, start, stop in filled)
            whole = source.offset == 0 and allocated.get(source.buffer) == _size(source)
            free = source.buffer not in results and last[source.buffer] == now
            if to.buffer in allocated.keys() & set(results) - touched and apart and whole and free:
                parts[source.buffer] = to.buffer, begin
                filled.append((to.buffer, begin, end))
                continue
        if not isinstance(step, Empty):
            touched |= uses(step)
        steps.append(step)
    homes = {home for home, _ in parts.values()}
    first = [step for step in steps if isinstance(step, Empty) and step.buffer in homes]
    tape.steps = first + [step for step in steps if not (isinstance(step, Empty) and step.buffer in homes)]
    return parts


def _copy(step: Step) -> tuple[Place, Place] | None:
    """Where a step copies a contiguous tensor to, and the tensor."""
    if not isinstance(step, Operation) or step.call is not _aten.copy_.default or len(step.args) != 2:
        return None
    to, source = step.args
    if not (isinstance(to, Place) and isinstance(source, Place)) or to.offset % ALIGNED:
        return None
    same = to.shape == source.shape and to.dtype == source.dtype
    return (to, source) if same and to.stride == source.stride == contiguous(to.shape) else None


def _size(x: Place) -> int:
    """Bytes."""
    return math.prod(x.shape) * x.dtype.itemsize
