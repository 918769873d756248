"""Small steps of a recorded pass, done together: sums of shares, gradients that meet, conversions, zeros.

Where it was recorded, each takes a launch for a microsecond's work. But a step can wait until a later one reads its
result or touches its operands, and those of a kind that wait at the same time take one launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch

from fgnn.nn.backends.triton import joint_launch
from fgnn.nn.backends.triton.tape import ALIGNED, Empty, Operation, Place, Step, Tape, contiguous, places_in, uses
from fgnn.runtime.triton_support import why_unavailable

_aten = torch.ops.aten
_MOST_BYTES = 1 << 26  # of operands and results that wait
_MOST_ENTRIES = 1 << 23  # of a sum of two tensors: with more, its work takes longer than a launch
_MOST_SHARES = 1024  # which one program of the kernel adds
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Kind(NamedTuple):
    """Operations that can be done together.

    Attributes:
        key: What those that are done together have in common; None for an operation of another kind.
        join: The steps that stand for several.
        most: How many at once.
        early: Whether they are done at the first of them instead of the last. Their operands must be constant.
    """

    key: Callable[[Operation], Hashable]
    join: Callable[[list[Operation]], Sequence[Step]]
    most: int
    early: bool = False


def join_steps(tape: Tape, device: torch.device, constant: Collection[int] = ()) -> None:
    """Do small steps of a tape together.

    Args:
        constant: Addresses of operands that the pass never writes to, such as parameters.
    """
    all_at_once = len(tape.steps)
    casts = partial(_casts, tape)
    kinds = [
        Kind(partial(_cast, tape, constant), casts, all_at_once, early=True),
        Kind(partial(_cast, tape, None), casts, all_at_once),
        Kind(partial(_zeros, device), partial(_filled, tape), all_at_once, early=True),
    ]
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if why_unavailable(device) is None and not capturing:  # to prepare a kernel launches it
        kinds.append(Kind(partial(_sum, tape), partial(joint_launch.sums, device), joint_launch.SUMS))
        kinds.append(Kind(partial(_addition, tape), partial(joint_launch.additions, device), joint_launch.ADDITIONS))
    for kind in kinds:
        tape.steps = _joined(tape.steps, kind)


def _joined(steps: Sequence[Step], kind: Kind) -> list[Step]:
    """The steps in an order in which those of a kind are done together."""
    line: list[list[Step]] = []
    waiting: dict[Hashable, list[Operation]] = {}
    touched: dict[Hashable, set[int]] = {}  # by those that wait
    last: dict[Hashable, list[Step]] = {}  # where the last of them was

    def done(key: Hashable) -> None:
        some, slot = waiting.pop(key), last.pop(key)
        del touched[key]
        if kind.early:
            some.reverse()
        if len(some) > 1:
            with suppress(Exception):  # a kernel that cannot be compiled here; the steps do without it
                slot += kind.join(some)
                return
        slot += some

    for step in reversed(steps) if kind.early else steps:
        used = uses(step)
        for key in [key for key, buffers in touched.items() if not buffers.isdisjoint(used)]:
            done(key)
        line.append(slot := list[Step]())
        key = kind.key(step) if isinstance(step, Operation) else None
        if key is None or not isinstance(step, Operation):
            slot.append(step)
            continue
        if key in waiting and sum(map(_bytes, [*waiting[key], step])) > _MOST_BYTES:
            done(key)
        last[key] = slot
        waiting.setdefault(key, []).append(step)
        touched.setdefault(key, set()).update(step.buffers if kind.early else used)
        if len(waiting[key]) == kind.most:
            done(key)
    for key in [*waiting]:
        done(key)
    if kind.early:
        line.reverse()
    return [step for slot in line for step in slot]


def _bytes(step: Operation) -> int:
    """Of what an operation reads or allocates, and of as much besides."""
    if step.call is _aten.zeros.default:
        return int(math.prod(step.args[0]) * step.options["dtype"].itemsize)
    return sum(2 * math.prod(place.shape) * place.dtype.itemsize for place in places_in(step.args))


# ---- conversions


def _cast(tape: Tape, constant: Collection[int] | None, step: Operation) -> Hashable:
    """Conversions of contiguous tensors, or of those at addresses in ``constant`` alone: their dtypes."""
    if step.call is not _aten._to_copy.default or step.options.keys() != {"dtype"}:
        return None
    source, result = step.args[0], tape.buffers[step.buffers[0]]
    if result is None or not math.prod(source.shape):
        return None
    if constant is not None:
        of = tape.buffers[source.buffer]
        if of is None or of.is_meta or of.data_ptr() not in constant:
            return None
    contiguous = result.is_contiguous() and result.stride() == source.stride
    return (source.dtype, result.dtype) if contiguous else None


def _casts(tape: Tape, steps: Sequence[Operation]) -> list[Step]:
    results = [tape.whole(step.buffers[0]) for step in steps]
    one = Operation(_aten._foreach_copy_.default, [results, [step.args[0] for step in steps]], {}, [])
    return [*[Empty(place.buffer, place.shape, place.dtype) for place in results], one]


# ---- zeros, to which launches add


def _zeros(device: torch.device, step: Operation) -> Hashable:
    """Tensors of zeros on this device: their dtype."""
    if step.call is not _aten.zeros.default or step.options["device"] != device:
        return None
    return str(step.options["dtype"])


def _filled(tape: Tape, steps: Sequence[Operation]) -> list[Step]:
    results = [tape.whole(step.buffers[0]) for step in steps]
    one = Operation(_aten._foreach_zero_.default, [results], {}, [])
    return [*[Empty(place.buffer, place.shape, place.dtype) for place in results], one]


# ---- sums of shares, and of two gradients


def _sum(tape: Tape, step: Operation) -> Hashable:
    """Sums over the first axis, of few rows, in float32."""
    if step.call is not _aten.sum.dim_IntList or step.options or step.args[1:] != [[0]]:
        return None
    x = step.args[0]
    fits = x.dtype == torch.float32 and len(x.shape) > 1 and 0 < x.shape[0] <= _MOST_SHARES
    return "sum" if fits and _is_readable(tape, x) else None


def _addition(tape: Tape, step: Operation) -> Hashable:
    """Sums of two tensors of the same shape: their dtype."""
    if step.call is not _aten.add.Tensor or step.options or len(step.args) != 2:
        return None
    a, b = step.args
    if not (isinstance(a, Place) and isinstance(b, Place) and a.shape == b.shape and a.dtype == b.dtype):
        return None
    small = math.prod(a.shape) <= _MOST_ENTRIES and a.dtype in _FLOATS
    return a.dtype if small and _is_readable(tape, a) and _is_readable(tape, b) else None


def _is_readable(tape: Tape, x: Place) -> bool:
    """Whether kernels can read a tensor: contiguous, aligned, with numbers."""
    buffer = tape.buffers[x.buffer]
    begin = 0 if buffer is None or buffer.is_meta else buffer.data_ptr()  # what is allocated is aligned
    aligned = (begin + x.offset) % ALIGNED == 0
    return aligned and math.prod(x.shape) > 0 and x.stride == contiguous(x.shape)
