"""The steps of a recorded pass, for operands at other addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fgnn.nn.backends.triton.memory_plan import Lifetime, aligned, plan
from fgnn.nn.backends.triton.tape import Empty, Launch, Operation, Place, Tape, places_in

_RUN, _ALLOCATE, _FREE, _CALL, _INTERPRET = range(5)


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

    Attributes:
        together: Where those results are: in that tensor (buffer 0), or in one that follows it.
    """

    def __init__(
        self, tape: Tape, results: Sequence[Tensor | Place | None], joint_from: int | None = None,
        parts: Mapping[int, tuple[int, int]] | None = None, slots: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        ends = [tape.place(x) if isinstance(x, Tensor) else x for x in results]
        made = tape.made
        there = [x if k in tape.fixed else None for k, x in enumerate(tape.buffers)]
        self.fixed: list[Any] = [*there, None, None]
        self.addresses = [0 if x is None else x.data_ptr() for x in self.fixed]
        self.slots = list(range(tape.operands) if slots is None else slots)
        self.device, self.sizes = -1, [0, 0]
        self.begins = dict(parts or {})  # what is part of another buffer: of which, and where
        self.together = self._join(tape, ends, len(ends) if joint_from is None else joint_from)
        if self.together is not None:
            alone = [end for end in ends[joint_from:] if end and end.buffer not in self.begins]
            ends = [*ends[:joint_from], *alone]
        escape = {end.buffer for end in ends if end is not None}
        uses = _uses(tape.steps)
        lives = [
            Lifetime(k, size, *uses[k]) for k, size in tape.allocated.items() if k not in escape | self.begins.keys()
        ]
        begins, self.sizes[0] = plan(lives)
        self.begins |= {k: (len(tape.buffers), begin) for k, begin in begins.items()}
        self.steps: list[tuple[Any, ...]] = []
        for now, step in enumerate(tape.steps):
            self._append(step, tape)
            done = [k for k in made - escape if uses[k][1] == now and k not in self.begins]
            self.steps += [(_FREE, k) for k in done]
        self.results: list[Any] = [None if end is None else self._moved(end, tape) for end in ends]
        if self.together is not None:
            self.results.insert(cast(int, joint_from), _Whole(len(tape.buffers) + 1))
        places = [(k, end) for k, end in enumerate(self.results) if isinstance(end, Place)]
        firsts = {end: k for k, end in reversed(places)}
        self.again = [(k, firsts[end]) for k, end in places if firsts[end] != k]
        for k, _ in self.again:
            self.results[k] = None
        self.pieces = _Pieces.of(self.results, tape)

    def _join(self, tape: Tape, ends: Sequence[Place | None], joint_from: int) -> list[Place] | None:
        """Make those of the last results that were allocated parts of one tensor; where they are in it, or after it."""
        before = {end.buffer for end in ends[:joint_from] if end is not None}
        last = [end for end in ends[joint_from:] if end is not None]
        joined = [end.buffer for end in last if end.buffer in tape.allocated.keys() - before]
        if len(joined) < 2 or len(last) < len(ends) - joint_from:
            return None
        for buffer in dict.fromkeys(joined):
            self.begins[buffer] = len(tape.buffers) + 1, self.sizes[1]
            self.sizes[1] += aligned(tape.allocated[buffer])
        others = count(1)
        return [
            self._moved(end)._replace(buffer=0) if end.buffer in self.begins
            else end._replace(buffer=next(others), offset=0)
            for end in last
        ]  # fmt: skip

    def _append(self, step: Empty | Operation | Launch, tape: Tape) -> None:
        if isinstance(step, Empty):
            if step.buffer not in self.begins:
                self.steps.append((_ALLOCATE, *step))
        elif isinstance(step, Operation):
            self.steps.append((_CALL, step.call, self._moved(step.args, tape), step.options, step.buffers))
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
        """Places where what is part of another buffer is; with ``tape`` the number of a buffer that is given whole."""
        if isinstance(x, Place):
            if x.buffer in self.begins:
                buffer, start = self.begins[x.buffer]
                return x._replace(buffer=buffer, offset=start + x.offset)
            return x if tape is None else _whole(x, tape)
        return [self._moved(y, tape) for y in x] if isinstance(x, list) else x

    def fits_here(self) -> bool:
        """Whether the current device is the one that the kernels were compiled for."""
        return self.device < 0 or torch.cuda.current_device() == self.device

    def __call__(self, operands: Sequence[Tensor | None]) -> list[Any] | None:
        """The results; None for addresses that are not aligned, as the kernels expect, and for another device."""
        tensors, at = self.fixed.copy(), self.addresses.copy()
        together = 0
        for k, x in zip(self.slots, operands, strict=True):
            if x is not None:
                tensors[k], at[k] = x, x.data_ptr()
                together |= at[k]
        device, stream = cast(Tensor, operands[0]).device, None
        if self.device >= 0:
            if together & 15 or not self.fits_here():
                return None
            stream = torch._C._cuda_getCurrentRawStream(self.device)
        for k, size in zip((-2, -1), self.sizes, strict=True):
            if size:
                tensors[k] = torch.empty(size, dtype=torch.uint8, device=device)
                at[k] = tensors[k].data_ptr()
        typed: dict[Any, Tensor] = {}
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
                _, call, given, options, made = step
                out = call(*[_filled(x, tensors, typed) for x in given], **options)
                for k, y in zip(made, out if len(made) > 1 else (out,), strict=False):
                    tensors[k], at[k] = y, y.data_ptr()
            else:
                _, call, given, places = step
                args = given.copy()
                for slot, place in places:
                    args[slot] = place.within(tensors[place.buffer])
                call(*args)
        found = [_filled(end, tensors, typed) for end in self.results]
        for piece in self.pieces:
            piece.fill(found, tensors)
        for k, first in self.again:  # autograd must see that two results are one
            found[k] = found[first]
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
            if isinstance(end, Place) and end.buffer < len(tape.buffers):
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


def _filled(x: Any, tensors: Sequence[Any], typed: dict[Any, Tensor]) -> Any:
    """Tensors for their places; ``typed`` keeps buffers as seen in other dtypes."""
    if type(x) is _Whole:
        return tensors[x]
    if type(x) is Place:
        buffer, offset, shape, stride, dtype = x
        flat = tensors[buffer]
        if flat.dtype != dtype:
            base = typed.get((buffer, dtype))
            if base is None:
                base = typed[buffer, dtype] = flat.view(-1).view(dtype)
            flat = base
        return flat.as_strided(shape, stride, flat.storage_offset() + offset // dtype.itemsize)
    return [_filled(y, tensors, typed) for y in x] if type(x) is list else x


def _uses(steps: Sequence[Empty | Operation | Launch]) -> dict[int, tuple[int, int]]:
    """For each buffer the first and the last step that uses it."""
    uses: dict[int, tuple[int, int]] = {}
    for now, step in enumerate(steps):
        if isinstance(step, Launch):
            used = [place.buffer for _, place in step.places]
        elif isinstance(step, Operation):
            used = step.buffers + [place.buffer for place in places_in(step.args)]
        else:
            used = [step.buffer]
        for k in used:
            uses[k] = uses[k][0] if k in uses else now, now
    return uses
