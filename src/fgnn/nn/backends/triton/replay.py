"""Passes over layers, replayed: the launches of an earlier call, at other addresses.

Sizes, grids and kernels of a pass follow from the shapes of its operands. To find them takes Python several times as
long as the kernels of a small network run, so it is done once for each kind of call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fgnn.nn.backends.triton.kernel_launch import local
from fgnn.nn.backends.triton.tape import Empty, Launch, Operation, Place, Tape, places_in

_ALIGN = 256  # bytes, as tensors of their own have
_SMALL = 1 << 20  # bytes: temporary tensors up to this size are parts of one
_MOST = 256  # programs in a dict
_ATTEMPTS = 3  # to record a pass

Pass = Callable[[], Sequence[Tensor | None]]
Programs = dict[Hashable, Any]
_kind = attrgetter("shape", "dtype")


def replayed(
    programs: Programs, key: Hashable, operands: Sequence[Tensor | None], run: Pass, joint_from: int | None = None
) -> tuple[list[Any], list[Place] | None]:
    """The results of ``run``, a pass over the operands that depends on them and on ``key`` alone.

    Args:
        programs: What earlier calls did. The first call of a kind is noted there, the second is recorded.
        joint_from: Results from this index on may be parts of one tensor, which is returned instead of them, and their
            places in it.
    """
    if local.notes is not None:  # nothing is launched
        return list(run()), None
    at = (key, cast(Tensor, operands[0]).device, *[None if x is None else _kind(x) for x in operands])
    if False in [x is None or x.is_contiguous() for x in operands]:
        at = (*at, *[None if x is None else x.stride() for x in operands])
    program = programs.get(at, 0)
    if isinstance(program, Program):
        try:
            found = program(operands)
        except (TypeError, AttributeError):  # this version of Triton launches kernels differently
            programs[at], found = _ATTEMPTS, None
        return (list(run()), None) if found is None else (found, program.together)
    if program in (0, _ATTEMPTS):
        if at not in programs and len(programs) >= _MOST:
            del programs[next(iter(programs))]  # the oldest
        programs[at] = program or 1
        return list(run()), None
    try:
        with Tape(operands) as tape:
            results = list(run())
    except torch.OutOfMemoryError:  # a tape keeps all that is allocated
        programs[at] = _ATTEMPTS
        return list(run()), None
    refused = tape.refused or any(x is not None and not x.numel() for x in results)
    programs[at] = program + 1 if refused else Program(tape, results, joint_from)
    return results, None


def arithmetic() -> tuple[Any, ...]:
    """The settings of torch that passes depend on, for their keys."""
    return torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()


def aligned(size: int) -> int:
    """Bytes of a part, so that the next one begins as tensors of their own do."""
    return -(-size // _ALIGN) * _ALIGN


_RUN, _ALLOCATE, _FREE, _CALL, _INTERPRET = range(5)


class Program:
    """The steps of a recorded pass, for operands at other addresses.

    Buffers are numbered as on the tape. One more holds all small temporary tensors, and one the results that may be
    parts of one tensor.
    """

    def __init__(self, tape: Tape, results: Sequence[Tensor | None], joint_from: int | None = None) -> None:
        ends = [None if x is None else tape.place(x) for x in results]
        made = {step.buffer for step in tape.steps if not isinstance(step, Launch) and step.buffer is not None}
        there = [None if k in made else x for k, x in enumerate(tape.buffers)]
        self.fixed: list[Any] = [*there[tape.operands :], None, None]
        self.addresses = [0 if x is None else x.data_ptr() for x in self.fixed]
        self.device, self.sizes = -1, [0, 0]
        self.begins: dict[int, tuple[int, int]] = {}  # the parts of the two: in which, and where
        self.together = self._join(tape, ends, len(ends) if joint_from is None else joint_from)
        if self.together is not None:
            alone = [end for end in ends[joint_from:] if end and end.buffer not in self.begins]
            ends = [*ends[:joint_from], *alone]
        escape = {end.buffer for end in ends if end is not None}
        for step in tape.steps:
            if isinstance(step, Empty) and step.buffer not in escape and step.like.nbytes <= _SMALL:
                self._part(step, 0, len(tape.buffers))
        self.steps: list[tuple[Any, ...]] = []
        for step, done in zip(tape.steps, _last_uses(tape.steps), strict=True):
            self._append(step, tape)
            self.steps += [(_FREE, k) for k in done & made - escape if k not in self.begins]
        self.results: list[Any] = [None if end is None else _whole(end, tape) for end in ends]
        if self.together is not None:
            self.results.insert(cast(int, joint_from), _Whole(len(tape.buffers) + 1))
        self.pieces = _Pieces.of(self.results, tape)

    def _join(self, tape: Tape, ends: Sequence[Place | None], joint_from: int) -> list[Place] | None:
        """Make those of the last results that were allocated parts of one tensor; where they are in it, or after it."""
        steps = {step.buffer: step for step in tape.steps if isinstance(step, Empty)}
        before = {end.buffer for end in ends[:joint_from] if end is not None}
        last = [end for end in ends[joint_from:] if end is not None]
        joined = [end.buffer for end in last if end.buffer in steps.keys() - before]
        if len(joined) < 2 or len(last) < len(ends) - joint_from:
            return None
        for buffer in dict.fromkeys(joined):
            self._part(steps[buffer], 1, len(tape.buffers))
        others = count(1)
        return [
            self._moved(end)._replace(buffer=0) if end.buffer in self.begins
            else end._replace(buffer=next(others), offset=0)
            for end in last
        ]  # fmt: skip

    def _part(self, step: Empty, which: int, first: int) -> None:
        if step.buffer not in self.begins:
            self.begins[step.buffer] = first + which, self.sizes[which]
            self.sizes[which] += aligned(step.like.nbytes)

    def _append(self, step: Empty | Operation | Launch, tape: Tape) -> None:
        if isinstance(step, Empty):
            if step.buffer not in self.begins:
                self.steps.append((_ALLOCATE, step.buffer, step.like.shape, step.like.dtype))
        elif isinstance(step, Operation):
            self.steps.append((_CALL, step.call, self._moved(step.args, tape), step.options, step.buffer))
        else:
            places: list[tuple[int, Place]] = [(slot, self._moved(place)) for slot, place in step.places]
            kernel, binary = step.kernel, step.kernel.binary
            if kernel.interpreted is not None:
                self.steps.append((_INTERPRET, kernel.interpreted, step.args, places))
                return
            self.device = kernel.device
            fills = [(slot, place.buffer, place.offset) for slot, place in places]
            where = (*kernel.grid, binary.function, binary.packed_metadata)
            self.steps.append((_RUN, binary.run, *where, [*step.args, *kernel.rest], fills))

    def _moved(self, x: Any, tape: Tape | None = None) -> Any:
        """Places where small temporary tensors are parts of one; with ``tape`` the number of a buffer given whole."""
        if isinstance(x, Place):
            if x.buffer in self.begins:
                buffer, start = self.begins[x.buffer]
                return x._replace(buffer=buffer, offset=start + x.offset)
            return x if tape is None else _whole(x, tape)
        return [self._moved(y, tape) for y in x] if isinstance(x, list) else x

    def __call__(self, operands: Sequence[Tensor | None]) -> list[Any] | None:
        """The results; None for addresses that are not aligned, as the kernels expect, and for another device."""
        tensors: list[Any] = [*operands, *self.fixed]
        at = [0 if x is None else x.data_ptr() for x in operands]
        device, stream = cast(Tensor, operands[0]).device, None
        if self.device >= 0:
            together = 0
            for address in at:
                together |= address
            if together & 15 or torch.cuda.current_device() != self.device:
                return None
            stream = torch._C._cuda_getCurrentRawStream(self.device)
        at += self.addresses
        for k, size in zip((-2, -1), self.sizes, strict=True):
            if size:
                tensors[k] = torch.empty(size, dtype=torch.uint8, device=device)
                at[k] = tensors[k].data_ptr()
        for step in self.steps:
            kind = step[0]
            if kind == _RUN:
                _, run, x, y, z, function, metadata, given, fills = step
                args = given.copy()
                for slot, k, offset in fills:
                    args[slot] = at[k] + offset
                run(x, y, z, stream, function, metadata, None, None, None, *args)
            elif kind == _ALLOCATE:
                _, k, shape, dtype = step
                tensors[k] = torch.empty(shape, dtype=dtype, device=device)
                at[k] = tensors[k].data_ptr()
            elif kind == _FREE:
                tensors[step[1]] = None
            elif kind == _CALL:
                _, call, given, options, k = step
                out = call(*_filled(given, tensors), **options)
                if k is not None:
                    tensors[k], at[k] = out, out.data_ptr()
            else:
                _, call, given, places = step
                args = given.copy()
                for slot, place in places:
                    args[slot] = place.within(tensors[place.buffer])
                call(*args)
        found = [_filled(end, tensors) for end in self.results]
        for piece in self.pieces:
            piece.fill(found, tensors)
        return found


class _Pieces(NamedTuple):
    """Results that lie in one buffer: all by one call."""

    buffer: int
    like: list[Tensor]  # the shapes of its parts, in order
    slots: list[tuple[int, int]]  # which result is which part

    @staticmethod
    def of(ends: list[Any], tape: Tape) -> list[_Pieces]:
        """The groups of results of which there are several in a buffer, which they take from ``ends``."""
        groups: dict[int, list[tuple[int, Place]]] = {}
        for k, end in enumerate(ends):
            if isinstance(end, Place):
                groups.setdefault(end.buffer, []).append((k, end))
        found = []
        for buffer, some in groups.items():
            own = cast(Tensor, tape.buffers[buffer])
            like, slots, stop = list[Tensor](), list[tuple[int, int]](), 0
            for k, end in sorted(some, key=lambda one: one[1].offset):
                row = torch.empty(1).expand(end.shape)
                start = end.offset // own.itemsize
                if (
                    end.dtype != own.dtype
                    or end.stride != torch.empty(end.shape, device="meta").stride()
                    or start < stop
                ):
                    break
                like += [torch.empty(1).expand(start - stop)] * (start > stop)
                slots.append((k, len(like)))
                like.append(row)
                stop = start + row.numel()
            else:
                if len(some) > 1 and own.is_contiguous() and all(row.numel() for row in like):
                    found.append(_Pieces(buffer, like, slots))
                    for k, _ in some:
                        ends[k] = None
        return found

    def fill(self, results: list[Any], tensors: Sequence[Any]) -> None:
        """Put the parts in their places among the results."""
        parts = torch._C._nn.unflatten_dense_tensors(tensors[self.buffer].view(-1), self.like)
        for k, part in self.slots:
            results[k] = parts[part]


class _Whole(int):
    """The number of a buffer that is given as it is."""


def _whole(place: Place, tape: Tape) -> Place | _Whole:
    own = cast(Tensor, tape.buffers[place.buffer])
    same = place.dtype == own.dtype and place.shape == own.shape and place.stride == own.stride()
    return _Whole(place.buffer) if same and not place.offset else place


def _filled(x: Any, tensors: Sequence[Any]) -> Any:
    """Tensors for their places."""
    if type(x) is _Whole:
        return tensors[x]
    if type(x) is Place:
        return x.within(tensors[x.buffer])
    return [_filled(y, tensors) for y in x] if type(x) is list else x


def _last_uses(steps: Sequence[Empty | Operation | Launch]) -> list[set[int]]:
    """For each step the buffers that no later step reads."""
    last: dict[int, int] = {}
    for k, step in enumerate(steps):
        if isinstance(step, Launch):
            used = [place.buffer for _, place in step.places]
        else:
            used = [] if step.buffer is None else [step.buffer]
            used += [place.buffer for place in places_in(step.args)] if isinstance(step, Operation) else []
        last |= dict.fromkeys(used, k)
    return [{buffer for buffer, at in last.items() if at == k} for k in range(len(steps))]
