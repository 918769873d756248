"""The steps of a recorded pass, for operands at other addresses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor

from fgnn.nn.backends.triton.memory_plan import Lifetime, aligned, plan
from fgnn.nn.backends.triton.straight_line import (
    ALLOCATE,
    CALL,
    CHECK,
    FREE,
    INTERPRET,
    RUN,
    Function,
    Memory,
    Whole,
    straight_line,
)
from fgnn.nn.backends.triton.tape import Check, Empty, Operation, Place, Step, Tape, contiguous, uses
from fgnn.runtime.kernel_launch import caller_of

_aten = torch.ops.aten
# Functions that take half as long to call as the operators they stand for, given nothing but positional arguments.
_FUNCTIONS = {
    _aten.add.Tensor: torch.add, _aten.sub.Tensor: torch.sub, _aten.mul.Tensor: torch.mul, _aten.div.Tensor: torch.div,
    _aten.floor_divide.default: torch.floor_divide, _aten.minimum.default: torch.minimum, _aten.mm.default: torch.mm,
    _aten.cat.default: torch.cat, _aten.gather.default: torch.gather,
    _aten._foreach_copy_.default: torch._foreach_copy_, _aten._foreach_zero_.default: torch._foreach_zero_,
}  # fmt: skip

_SMALL = 1 << 18  # bytes


def _nothing() -> None:
    pass


class Program:
    """What was recorded on a tape, to be repeated.

    Buffers are numbered as on the tape. One more is the memory of all temporary tensors, and one holds the results that
    may be parts of one tensor.

    Args:
        tape: The steps.
        results: Tensors of the tape, or their places.
        joint_from: Results from this index on may be parts of one tensor, which is returned instead of them; see
            ``together``.
        parts: Operands of the tape that are parts of others now: of which, and at which byte.
        slots: The numbers of the operands that a call gives; by default all of the tape's.
        joint_small: Small results that the pass allocates share memory, which takes less time to allocate. A change in
            place of one is none of the others.

    Attributes:
        together: Where those results are: in that tensor (buffer 0), or in one that follows it.
        alone: Which results are tensors that the program allocates, neither views nor other results too.
    """

    def __init__(
        self, tape: Tape, results: Sequence[Tensor | Place | None], joint_from: int | None = None,
        parts: Mapping[int, tuple[int, int]] | None = None, slots: Sequence[int] | None = None,
        joint_small: bool = False,
    ) -> None:  # fmt: skip
        ends = [tape.place(x) if isinstance(x, Tensor) else x for x in results]
        made = tape.made
        there = [x if k in tape.fixed else None for k, x in enumerate(tape.buffers)]
        self.fixed: list[Any] = [*there, None, None]
        self.slots = list(range(tape.operands) if slots is None else slots)
        self.where = cast(Tensor, tape.buffers[self.slots[0]]).device
        self.device, self.sizes = -1, [0, 0]
        self.begins = dict(parts or {})  # what is part of another buffer: of which, and where
        self.together = self._join(tape, ends, len(ends) if joint_from is None else joint_from)
        if self.together is not None:
            alone = [end for end in ends[joint_from:] if end and end.buffer not in self.begins]
            ends = [*ends[:joint_from], *alone]
        escape = {end.buffer for end in ends if end is not None}
        if joint_small:
            self._place_jointly([k for k, size in tape.allocated.items() if k in escape and size <= _SMALL], tape)
        used = _lives(tape.steps)
        lives = [
            Lifetime(k, size, *used[k]) for k, size in tape.allocated.items() if k not in escape | self.begins.keys()
        ]
        begins, self.sizes[0] = plan(lives)
        self.begins |= {k: (len(tape.buffers), begin) for k, begin in begins.items()}
        self.steps: list[tuple[Any, ...]] = []
        for now, step in enumerate(tape.steps):
            self._append(step, tape)
            done = [k for k in made - escape if used[k][1] == now and k not in self.begins]
            self.steps += [(FREE, k) for k in done]
        self.results: list[Any] = [None if end is None else self._moved(end, tape) for end in ends]
        if self.together is not None:
            self.results.insert(cast(int, joint_from), Whole(len(tape.buffers) + 1))
        places = [(k, end) for k, end in enumerate(self.results) if isinstance(end, Place)]
        firsts = {end: k for k, end in reversed(places)}
        self.again = [(k, firsts[end]) for k, end in places if firsts[end] != k]
        for k, _ in self.again:
            self.results[k] = None
        self.alone = self._in_shape()
        several = {buffer for buffer, _ in (parts or {}).values()}
        dtypes = [None if x is None or k in several else x.dtype for k, x in enumerate(tape.buffers)]
        self._memory = Memory(self.where, self.slots, self.fixed, [*dtypes, None, None], self.sizes, joint_small)
        self._function: Function | None = None  # written at the first call

    def _in_shape(self) -> set[int]:
        """Allocate what only launches and one result read in the shape of that result, so that it needs no view."""
        counts = Counter(end.buffer if isinstance(end, Place) else int(end) for end in self.results if end is not None)
        read = {k for step in self.steps if step[0] == CALL for k in _buffers_in(step[2])}
        allocated = {step[1]: at for at, step in enumerate(self.steps) if step[0] == ALLOCATE}
        alone = set()
        for slot, end in enumerate(self.results):
            buffer = end.buffer if isinstance(end, Place) else end
            if buffer is None or counts[buffer] > 1 or buffer not in allocated or slot in dict(self.again).values():
                continue
            if isinstance(end, Place):
                _, _, shape, dtype = self.steps[allocated[buffer]]
                same = dtype == end.dtype and math.prod(shape) == math.prod(end.shape)
                if buffer in read or not same or end.stride != contiguous(end.shape):
                    continue
                self.steps[allocated[buffer]] = (ALLOCATE, buffer, end.shape, dtype)
                self.results[slot] = Whole(buffer)
            alone.add(slot)
        return alone

    def _join(self, tape: Tape, ends: Sequence[Place | None], joint_from: int) -> list[Place] | None:
        """Make those of the last results that were allocated parts of one tensor; where they are in it, or after it."""
        before = {end.buffer for end in ends[:joint_from] if end is not None}
        last = [end for end in ends[joint_from:] if end is not None]
        joined = [end.buffer for end in last if end.buffer in tape.allocated.keys() - before]
        if len(joined) < 2 or len(last) < len(ends) - joint_from:
            return None
        self._place_jointly(dict.fromkeys(joined), tape)
        others = count(1)
        return [
            self._moved(end)._replace(buffer=0) if end.buffer in self.begins
            else end._replace(buffer=next(others), offset=0)
            for end in last
        ]  # fmt: skip

    def _place_jointly(self, buffers: Iterable[int], tape: Tape) -> None:
        for buffer in buffers:
            self.begins[buffer] = len(tape.buffers) + 1, self.sizes[1]
            self.sizes[1] += aligned(tape.allocated[buffer])

    def _append(self, step: Step, tape: Tape) -> None:
        if isinstance(step, Check):
            self.steps.append((CHECK,))
        elif isinstance(step, Empty):
            if step.buffer not in self.begins:
                self.steps.append((ALLOCATE, *step))
        elif isinstance(step, Operation):
            self.steps.append((CALL, *self._shorter(step, tape), step.buffers))
        else:
            places: list[tuple[int, Place]] = [(slot, self._moved(place)) for slot, place in step.places]
            kernel, binary = step.kernel, step.kernel.binary
            if kernel.interpreted is not None:
                self.steps.append((INTERPRET, kernel.interpreted, step.args, places))
                return
            self.device = kernel.device
            fills = [(slot, place.buffer, place.offset) for slot, place in places]
            run, before = caller_of(binary)
            self.steps.append((RUN, run, kernel.grid, before, [*step.args, *kernel.rest], fills))

    def _shorter(self, step: Operation, tape: Tape) -> tuple[Any, list[Any], dict[str, Any]]:
        """The call, its arguments and options, of a function that is found sooner than an operator if there is one."""
        call, args, options = step.call, step.args, step.options
        if call in _FUNCTIONS and not options:
            call = _FUNCTIONS[call]
        elif call is _aten.sum.dim_IntList:
            call = torch.sum
        elif call is _aten._to_copy.default and options.keys() == {"dtype"}:
            call, args, options = Tensor.to, [*args, options["dtype"], False, True], {}
        elif call is _aten.zeros.default:
            call = torch.zeros
        return call, self._moved(args, tape), options

    def _moved(self, x: Any, tape: Tape | None = None) -> Any:
        """Places where what is part of another buffer is; with ``tape`` the number of a buffer that is given whole."""
        if isinstance(x, Place):
            if x.buffer in self.begins:
                buffer, start = self.begins[x.buffer]
                there = x._replace(buffer=buffer, offset=start + x.offset)
                return there if buffer == x.buffer else self._moved(there)  # which may be part of another
            return x if tape is None else _whole(x, tape)
        return [self._moved(y, tape) for y in x] if isinstance(x, list) else x

    def fits_here(self) -> bool:
        """Whether the current device is the one that the kernels were compiled for."""
        return self.device < 0 or torch.cuda.current_device() == self.device

    def __call__(self, operands: Sequence[Tensor | None], check: Callable[[], None] = _nothing) -> list[Any] | None:
        """The results; None for addresses that are not aligned, as the kernels expect, and for another device.

        ``check`` is called where the tape says so; what it raises ends the pass.
        """
        stream = None
        if self.device >= 0:
            if torch.cuda.current_device() != self.device:
                return None
            stream = torch._C._cuda_getCurrentRawStream(self.device)
        if self._function is None:
            self._function = straight_line(self.steps, self._memory, self.results, self.again)
        return self._function(operands, stream, check)


def _whole(place: Place, tape: Tape) -> Place | Whole:
    own = cast(Tensor, tape.buffers[place.buffer])
    same = place.dtype == own.dtype and place.shape == own.shape and place.stride == own.stride()
    return Whole(place.buffer) if same and not place.offset else place


def _buffers_in(x: Any) -> Iterator[int]:
    """The buffers among the arguments of an operation."""
    if isinstance(x, list):
        for y in x:
            yield from _buffers_in(y)
    elif isinstance(x, Place | Whole):
        yield x.buffer if isinstance(x, Place) else int(x)


def _lives(steps: Sequence[Step]) -> dict[int, tuple[int, int]]:
    """For each buffer the first and the last step that uses it."""
    lives: dict[int, tuple[int, int]] = {}
    for now, step in enumerate(steps):
        for k in uses(step):
            lives[k] = lives[k][0] if k in lives else now, now
    return lives
