"""What a pass over a layer does, as a list of steps: allocations, launches and a few operations of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fgnn.nn.backends.triton.kernel_launch import Launched, local

_aten = torch.ops.aten
_ALLOCATE = {
    _aten.empty.memory_format, _aten.empty_strided.default, _aten.empty_like.default, _aten.new_empty.default,
    _aten.new_empty_strided.default,
}  # fmt: skip
# Operations whose effect depends on shapes alone; any other may depend on values.
_REPEAT = {
    _aten.sum.dim_IntList, _aten._to_copy.default, _aten.clone.default, _aten.copy_.default, _aten.cat.default,
    _aten.mm.default, _aten.addmm.default, _aten.add.Tensor, _aten.add_.Tensor, _aten.relu.default,
    _aten.relu_.default, _aten.threshold_backward.default, _aten.zero_.default, _aten.new_zeros.default,
    _aten.zeros.default, _aten.new_ones.default, _aten.constant_pad_nd.default,
}  # fmt: skip


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
    like: Tensor


class Operation(NamedTuple):
    """A call of torch; ``buffer`` is that of its result, None if it writes in place. Tensors are given by place."""

    call: Any
    args: list[Any]
    options: dict[str, Any]
    buffer: int | None


class Launch(NamedTuple):
    """A launch; ``places`` are those of the arguments that are tensors."""

    kernel: Launched
    args: list[Any]
    places: list[tuple[int, Place]]


class Tape(TorchDispatchMode):
    """Records the steps of a pass inside the block.

    Attributes:
        refused: Whether the pass did something that cannot be repeated.
        buffers: The operands, and all that was allocated or read besides, by number.
    """

    def __init__(self, operands: Sequence[Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operands = len(operands)
        self.steps: list[Empty | Operation | Launch] = []
        self.buffers: list[Tensor | None] = []  # alive, so that no address is used twice
        self._spans: list[tuple[int, int]] = []
        for x in operands:
            self._add(x)
        spans = sorted(span for span in self._spans if span[1] > span[0])
        self.refused = any(stop > start for (_, stop), (start, _) in pairwise(spans))
        self.paused = False

    def __enter__(self) -> Self:
        local.tape = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        local.tape = None
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation of torch and record it."""
        out = func(*args, **(kwargs or {}))
        if self.paused or self.refused:
            return out
        in_place = func._schema.is_mutable
        if not in_place and args and isinstance(args[0], Tensor) and _share_memory(out, args[0]):
            return out  # a view
        if func in _ALLOCATE and out.is_contiguous():
            self.steps.append(Empty(self._add(out), out))
        elif func in _REPEAT or (func.is_view and isinstance(out, Tensor)):  # `to` and `reshape` may copy
            given, options = self._described(list(args)), kwargs or {}
            self.steps.append(Operation(func, given, options, None if in_place else self._add(out)))
        else:
            self.refused = True
        return out

    def launched(self, kernel: Launched | None, args: Sequence[Any]) -> None:
        """Record a launch; None cannot be repeated."""
        self.refused |= kernel is None
        if kernel is not None and not self.refused:
            given = [None if isinstance(x, Tensor) else x for x in args]
            places = [(k, self.place(x)) for k, x in enumerate(args) if isinstance(x, Tensor)]
            self.steps.append(Launch(kernel, given, places))

    def place(self, x: Tensor) -> Place:
        """Where a tensor is. What was there before and is no operand, such as an index, is the same at every call."""
        address = x.data_ptr()
        found = [k for k, (start, stop) in enumerate(self._spans) if start <= address < stop]
        buffer = found[0] if found else self._add(x)
        return Place(buffer, address - self._spans[buffer][0], tuple(x.shape), x.stride(), x.dtype)

    def _described(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return self.place(x)
        return [self._described(y) for y in x] if isinstance(x, list) else x

    def _add(self, x: Tensor | None) -> int:
        start = 0 if x is None else x.data_ptr()
        self._spans.append((start, start + (0 if x is None else _span(x))))
        self.buffers.append(x)
        return len(self.buffers) - 1


def places_in(x: Any) -> Iterator[Place]:
    """All places among the arguments of a step."""
    if isinstance(x, Place):
        yield x
    elif isinstance(x, list):
        for y in x:
            yield from places_in(y)


def _share_memory(out: Any, x: Tensor) -> bool:
    """Whether an operation returned views of its first argument alone."""
    own = x.untyped_storage().data_ptr()
    return all(y.untyped_storage().data_ptr() == own for y in ([out] if isinstance(out, Tensor) else out))


def _span(x: Tensor) -> int:
    """Bytes from the first entry to the last."""
    if not x.numel():
        return 0
    return (1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))) * x.itemsize
