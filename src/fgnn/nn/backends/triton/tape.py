"""What a pass over a layer does, as a list of steps: allocations, launches and a few operations of torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fgnn.runtime.kernel_launch import Launched, local

ALIGNED = 16  # bytes: where the kernels expect tensors to begin
_aten = torch.ops.aten
_ALLOCATE = {
    _aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default, _aten.new_empty.default,
    _aten.new_empty_strided.default,
}  # fmt: skip
_ZEROS = {_aten.zeros.default, _aten.new_zeros.default, _aten.zeros_like.default}
# A tensor made of Python numbers, the same at every call.
_CONSTANT = {_aten.lift_fresh.default, _aten.lift.default}
# Operations that read values, or whose results have a shape that depends on values.
_UNKNOWN = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Place(NamedTuple):
    """A tensor of a pass: in which of its buffers, and how."""

    buffer: int
    offset: int  # bytes
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def within(self, buffer: Tensor) -> Tensor:
        """The tensor, given its buffer."""
        flat = buffer if buffer.dtype == self.dtype else buffer.view(-1).view(self.dtype)
        return flat.as_strided(self.shape, self.stride, flat.storage_offset() + self.offset // self.dtype.itemsize)


class Empty(NamedTuple):
    """An allocation."""

    buffer: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Operation(NamedTuple):
    """A call of torch; ``buffers`` are those of its results, none if it writes in place. Tensors are given by place."""

    call: Any
    args: list[Any]
    options: dict[str, Any]
    buffers: list[int]


class Launch(NamedTuple):
    """A launch; ``places`` are those of the arguments that are tensors."""

    kernel: Launched
    args: list[Any]
    places: list[tuple[int, Place]]


class Check(NamedTuple):
    """Where it turns out whether a pass is wanted: what comes before has made nothing but new tensors."""


Step = Empty | Operation | Launch | Check


class Tape(TorchDispatchMode):
    """Records the steps of a pass inside the block.

    Args:
        operands: What the pass reads.
        before: The tape of an earlier pass, whose operands and allocations are the first operands of this one.
        constant: Tensors that the pass may not write to: it raises ``RuntimeError`` before it would.

    Attributes:
        fixed: The numbers of the buffers that are neither operands nor allocated: the same at every call.
        refused: What the pass did that cannot be repeated; empty if it can.
        buffers: By number the operands, what was read besides and, without its numbers, what was allocated: a pass
            frees its memory while it is recorded. So a tensor is in the last buffer at its address.
    """

    def __init__(
        self, operands: Sequence[Tensor | None], before: Tape | None = None, constant: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._constant = {_storage(x) for x in constant if x.numel()}
        self.operands = 0
        self.steps: list[Step] = []
        self.buffers: list[Tensor | None] = []
        self._spans: list[tuple[int, int]] = []
        self.fixed: set[int] = set()
        if before is not None:
            self.buffers, self._spans, self.fixed = [*before.buffers], [*before._spans], {*before.fixed}
        first = len(self.buffers)
        for x in operands:
            self._add(x)
        self.operands = len(self.buffers)
        spans = sorted(span for span in self._spans[first:] if span[1] > span[0])
        overlap = any(stop > start for (_, stop), (start, _) in pairwise(spans))
        self.refused = "operands that share memory" if overlap else ""
        self.paused = False

    @property
    def made(self) -> set[int]:
        """The buffers that the pass allocated itself."""
        found = set(self.allocated)
        return found.union(*[step.buffers for step in self.steps if isinstance(step, Operation)])

    @property
    def allocated(self) -> dict[int, int]:
        """The buffers that the pass allocated to be filled by launches, and their bytes."""
        return {step.buffer: step.size for step in self.steps if isinstance(step, Empty)}

    @property
    def used(self) -> set[int]:
        """The buffers that the pass reads or writes."""
        found = [place for step in self.steps if isinstance(step, Launch) for _, place in step.places]
        found += [place for step in self.steps if isinstance(step, Operation) for place in places_in(step.args)]
        return {place.buffer for place in found}

    @property
    def read(self) -> set[int]:
        """The operands that the pass uses."""
        return {k for k in self.used if k < self.operands} - self.fixed

    def __enter__(self) -> Self:
        local.tape = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        local.tape = None
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation of torch and record it."""
        if self.paused:
            return func(*args, **(kwargs or {}))
        in_place = func._schema.is_mutable
        if in_place and not self._constant.isdisjoint(_storage(x) for x in _tensors(args[:1])):
            raise RuntimeError(f"Expected a pass that leaves its parameters as they are (got {func})")
        out = func(*args, **(kwargs or {}))
        if self.refused:
            return out
        if next(_tensors([args, *(kwargs or {}).values(), out]), None) is None:  # follows from numbers, like a dtype
            return out
        if func in _CONSTANT:  # copied, as the pass or the caller may write to what it got
            numbers = out.clone()
            self.fixed.add(self._add(numbers))
            place = self.place(numbers)
            self.steps.append(Operation(_aten.clone.default, [place], {}, [self._add(out, _without_numbers(out))]))
            return out
        outs = list(out) if isinstance(out, tuple | list) else [] if out is None else [out]
        if in_place and all(_is_given(x, args) for x in outs):
            outs = []
        elif outs and args and isinstance(args[0], Tensor) and _share_memory(outs, args[0]):
            return out  # a view
        if func in _ALLOCATE and out.is_contiguous():
            self.steps.append(Empty(self._add(out, _without_numbers(out)), tuple(out.shape), out.dtype))
            return out
        if not (in_place and outs) and _can_be_repeated(func, args, kwargs or {}, outs):
            given, options = self._described(list(args)), kwargs or {}
            if func in _ZEROS and out.is_contiguous():
                func, given, options = _aten.zeros.default, [[*out.shape]], {"dtype": out.dtype, "device": out.device}
            elif func is _aten._to_copy.default and out.device == args[0].device and out.stride() == args[0].stride():
                options = {"dtype": out.dtype}
            made = [self._add(x, _without_numbers(x)) for x in outs]
            self.steps.append(Operation(func, given, options, made))
        else:
            self.refused = str(func)
        return out

    def launched(self, kernel: Launched | None, args: Sequence[Any]) -> None:
        """Record a launch; None cannot be repeated."""
        if kernel is None:
            self.refused = self.refused or "a kernel at an address that is not aligned"
        elif not self.refused:
            given = [None if isinstance(x, Tensor) else x for x in args]
            places = [(k, self.place(x)) for k, x in enumerate(args) if isinstance(x, Tensor)]
            self.steps.append(Launch(kernel, given, places))

    def place(self, x: Tensor) -> Place:
        """Where a tensor is. What was there before and is no operand, such as an index, is the same at every call."""
        address = x.data_ptr()
        found = (k for k in reversed(range(len(self._spans))) if self._spans[k][0] <= address < self._spans[k][1])
        buffer = next(found, None)
        if buffer is None:
            buffer = self._add(x)
            self.fixed.add(buffer)
        return Place(buffer, address - self._spans[buffer][0], tuple(x.shape), x.stride(), x.dtype)

    def whole(self, buffer: int) -> Place:
        """The place of a buffer."""
        x = self.buffers[buffer]
        assert x is not None
        return Place(buffer, 0, tuple(x.shape), x.stride(), x.dtype)

    def _described(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.place(x)
        return [self._described(y) for y in x] if isinstance(x, list) else x

    def _add(self, x: Tensor | None, stand_in: Tensor | None = None) -> int:
        start = 0 if x is None else x.data_ptr()
        self._spans.append((start, start + (0 if x is None else _span(x))))
        self.buffers.append(x if stand_in is None else stand_in)
        return len(self.buffers) - 1


def uses(step: Step) -> set[int]:
    """The buffers that a step makes, reads or writes."""
    if isinstance(step, Check):
        return set()
    if isinstance(step, Empty):
        return {step.buffer}
    if isinstance(step, Launch):
        return {place.buffer for _, place in step.places}
    return {*step.buffers, *[place.buffer for place in places_in(step.args)]}


def _can_be_repeated(func: Any, args: Any, options: Any, outs: Sequence[Any]) -> bool:
    """Whether the results and where they lie follow from the shapes and numbers of the arguments."""
    unknown = _UNKNOWN & set(func.tags) and not _selects_rows(func, args)
    if func.namespace != "aten" or unknown or any(isinstance(x, Tensor) for x in options.values()):
        return False
    if not all(isinstance(x, Tensor) for x in outs):
        return False
    # what is copied to the host can be read without torch
    return not (any(isinstance(x, Tensor) and x.is_cuda for x in args) and any(not x.is_cuda for x in outs))


def _selects_rows(func: Any, args: Any) -> bool:
    """Whether an operation indexes by numbers: by a mask, the size of its result would depend on values."""
    return func is _aten.index.Tensor and all(x is None or x.dtype in (torch.int64, torch.int32) for x in args[1])


def places_in(x: Any) -> Iterator[Place]:
    """All places among the arguments of a step."""
    if isinstance(x, Place):
        yield x
    elif isinstance(x, list):
        for y in x:
            yield from places_in(y)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor of its own."""
    return torch.empty(tuple(shape), device="meta").stride()


def _tensors(x: Any) -> Iterator[Tensor]:
    """All tensors among the arguments of an operation."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, tuple | list):
        for y in x:
            yield from _tensors(y)


def _is_given(x: Any, args: Any) -> bool:
    """Whether a result lies in the memory of an argument."""
    return any(_share_memory([x], y) for y in _tensors(args))


def _without_numbers(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _share_memory(outs: Sequence[Any], x: Tensor) -> bool:
    """Whether an operation returned views of its first argument alone."""
    return all(isinstance(y, Tensor) and _storage(y) == _storage(x) for y in outs)


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _span(x: Tensor) -> int:
    """Bytes from the first entry to the last."""
    if not x.numel():
        return 0
    return (1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))) * x.itemsize
