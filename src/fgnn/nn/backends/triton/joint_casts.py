"""Parameters that a recorded pass rounds to half precision, one by one: all in one launch instead."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch

from fgnn.nn.backends.triton.tape import Empty, Operation, Place, Tape

_aten = torch.ops.aten


def join_casts(tape: Tape, parameters: Collection[int]) -> None:
    """Convert the dtypes of parameters at the first of these conversions, together.

    Args:
        parameters: The addresses of tensors that the pass reads and never writes to.
    """
    kinds: dict[tuple[torch.dtype, torch.dtype], list[int]] = {}
    for at, step in enumerate(tape.steps):
        if isinstance(step, Operation) and _is_cast(step, tape, parameters):
            kinds.setdefault((step.args[0].dtype, step.options["dtype"]), []).append(at)
    for some in kinds.values():
        if len(some) > 1:
            _join(tape, some)


def _is_cast(step: Operation, tape: Tape, parameters: Collection[int]) -> bool:
    """Whether a step is nothing but the conversion of a contiguous parameter."""
    if step.call is not _aten._to_copy.default or step.options.keys() != {"dtype"} or len(step.args) != 1:
        return False
    source, (made,) = step.args[0], step.buffers
    if not isinstance(source, Place) or not math.prod(source.shape):
        return False
    of = tape.buffers[source.buffer]
    result = tape.buffers[made]
    if of is None or of.is_meta or of.data_ptr() not in parameters or result is None:
        return False
    return result.is_contiguous() and tuple(result.stride()) == tuple(source.stride)


def _join(tape: Tape, at: list[int]) -> None:
    """Replace these conversions of a kind by one, where the first of them is."""
    steps: list[Any] = [*tape.steps]
    casts = [steps[k] for k in at]
    allocations = [Empty(step.buffers[0], step.args[0].shape, step.options["dtype"]) for step in casts]
    results = [tape.whole(step.buffers[0]) for step in casts]
    one = Operation(_aten._foreach_copy_.default, [results, [step.args[0] for step in casts]], {}, [])
    first, *rest = at
    for k in rest:
        steps[k] = None
    steps[first : first + 1] = [*allocations, one]
    tape.steps = [step for step in steps if step is not None]
