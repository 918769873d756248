"""The steps of a program as one function: a line for each, with its numbers in place.

A loop over the steps would ask of each what it is, and fill in its arguments one by one, at every call. In a small
network that takes longer than the launches themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends.triton.tape import Place, places_in

RUN, ALLOCATE, FREE, CALL, INTERPRET, CHECK = range(6)
# Types whose literals are the same values.
_LITERAL = (type(None), bool, int, str)

Function = Callable[[Sequence[Tensor | None], int | None, Callable[[], None]], list[Any] | None]


class Whole(int):
    """The number of a buffer that is given as it is."""


class Memory(NamedTuple):
    """The buffers of a program.

    Attributes:
        device: Where the program allocates.
        operands: The numbers of those that a call gives.
        fixed: Those that are the same at every call, others None.
        dtypes: By number; None where it is not known.
        sizes: The bytes of the last two, which are allocated at once: the temporary tensors and the joint results.
        own_versions: Whether results that are parts of others count changes in place each for itself.
    """

    device: torch.device
    operands: Sequence[int]
    fixed: Sequence[Tensor | None]
    dtypes: Sequence[torch.dtype | None]
    sizes: Sequence[int]
    own_versions: bool = False


def straight_line(
    steps: list[tuple[Any, ...]], memory: Memory, results: Sequence[Any], again: Sequence[tuple[int, int]]
) -> Function:
    """A function of the operands, a stream and a check: the results, or None for addresses that kernels cannot read.

    Args:
        again: Results that are None in ``results``, and which others they are.
    """
    return _Writer(steps, memory, results).function(again)


class _Writer:
    """Writes the lines: t3 is buffer 3, a3 its address, and c3 what is no literal."""

    def __init__(self, steps: list[tuple[Any, ...]], memory: Memory, results: Sequence[Any]) -> None:
        self._steps, self._memory, self._results = steps, memory, results
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"empty": torch.empty, "device": memory.device}
        self._constants: dict[int, str] = {}  # names by identity
        self._views: dict[tuple[int, torch.dtype], str] = {}  # buffers as seen in other dtypes
        count = len(memory.fixed)
        # the dtypes of those that the program allocates
        self._own = {step[1]: step[3] for step in steps if step[0] == ALLOCATE}
        self._own |= {count - 2: _most_read(steps, count - 2), count - 1: torch.uint8}
        self._read = {k for step in steps if step[0] == RUN for _, k, _ in step[-1]}  # by launches, at their addresses

    def function(self, again: Sequence[tuple[int, int]]) -> Function:
        self._begin()
        for step in self._steps:
            (self._run, self._allocate, self._free, self._call, self._interpret, self._check)[step[0]](*step[1:])
        alone = ".data" if self._memory.own_versions else ""
        found = ["None" if end is None else self._tensor(end) + alone * isinstance(end, Place) for end in self._results]
        for slot, first in again:
            self._line(f"r{first} = {found[first]}")
            found[slot] = found[first] = f"r{first}"
        self._line(f"return [{', '.join(found)}]")
        text = "\n    ".join(["def program(operands, stream, check):", *self._lines])
        exec(compile(text, "<program>", "exec"), self._names)
        function: Function = self._names.pop("program")
        return function

    def _begin(self) -> None:
        """Unpack the operands, look at their addresses, and allocate."""
        names = "".join(f"t{k}, " for k in self._memory.operands)
        self._line(f"{names}= operands" if names else "() = operands")
        given = [k for k in self._memory.operands if k in self._read]
        for k in given:
            self._line(f"a{k} = t{k}.data_ptr()")
        if given:
            self._line(f"if ({' | '.join(f'a{k}' for k in given)}) & 15: return None")
        count = len(self._memory.fixed)
        for k, size in zip((count - 2, count - 1), self._memory.sizes, strict=True):
            if size:
                dtype = self._own[k]
                self._allocate(k, (size // dtype.itemsize,), dtype)
        self._names |= {f"t{k}": x for k, x in enumerate(self._memory.fixed) if x is not None}

    def _run(self, run: Any, grid: Iterable[int], before: Iterable[Any], args: Iterable[Any], fills: Any) -> None:
        given = [self._constant(arg) for arg in args]
        for slot, k, offset in fills:
            given[slot] = self._address(k, offset)
        first = [*map(str, grid), "stream", *map(self._constant, before)]
        self._line(f"{self._constant(run)}({', '.join([*first, *given])})")

    def _allocate(self, k: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        sizes = ", ".join(map(str, shape)) or "()"  # numbers take less time than a tuple
        self._line(f"t{k} = empty({sizes}, dtype={self._constant(dtype)}, device=device)")
        if k in self._read:
            self._line(f"a{k} = t{k}.data_ptr()")

    def _free(self, k: int) -> None:
        views = [at for at in self._views if at[0] == k]
        names = [f"t{k}", *[self._views.pop(at) for at in views]]
        self._line(f"{' = '.join(names)} = None")

    def _call(self, call: Any, args: list[Any], options: Mapping[str, Any], made: Sequence[int]) -> None:
        given = [self._tensor(x) for x in args] + [f"{name}={self._constant(x)}" for name, x in options.items()]
        what = f"{self._constant(call)}({', '.join(given)})"
        self._line(f"{', '.join(f't{k}' for k in made)} = {what}" if made else what)
        for k in made:  # also sees that it is a tensor
            self._line(f"a{k} = t{k}.data_ptr()")

    def _interpret(self, call: Any, args: Sequence[Any], places: Sequence[tuple[int, Place]]) -> None:
        given = [self._constant(arg) for arg in args]
        for slot, place in places:
            given[slot] = f"{self._constant(place)}.within(t{place.buffer})"
        self._line(f"{self._constant(call)}({', '.join(given)})")

    def _check(self) -> None:
        self._line("check()")

    def _tensor(self, x: Any) -> str:
        """An argument or a result, with tensors for their places."""
        if type(x) is Whole:
            return f"t{int(x)}"
        if type(x) is Place:
            return self._view(x)
        if type(x) is list:
            return f"[{', '.join(self._tensor(y) for y in x)}]"
        return self._constant(x)

    def _view(self, place: Place) -> str:
        k, begin = place.buffer, place.offset // place.dtype.itemsize
        own, base = self._own.get(k), f"t{k}"
        if place.dtype != (own or self._memory.dtypes[k]):
            base = f"t{k}_{str(place.dtype).removeprefix('torch.')}"
            if (k, place.dtype) not in self._views:
                self._views[k, place.dtype] = base
                self._line(f"{base} = t{k}.view(-1).view({self._constant(place.dtype)})")
        where = [str(tuple(place.shape)), str(tuple(place.stride))]
        if begin:
            where.append(str(begin) if own else f"{base}.storage_offset() + {begin}")
        return f"{base}.as_strided({', '.join(where)})"

    def _address(self, k: int, offset: int) -> str:
        fixed = self._memory.fixed[k]
        if fixed is not None:
            return str(fixed.data_ptr() + offset)
        return f"a{k} + {offset}" if offset else f"a{k}"

    def _constant(self, x: Any) -> str:
        if type(x) in _LITERAL or (type(x) is float and math.isfinite(x)):
            return repr(x)
        name = self._constants.setdefault(id(x), f"c{len(self._constants)}")
        self._names[name] = x
        return name

    def _line(self, text: str) -> None:
        self._lines.append(text)


def _most_read(steps: Iterable[tuple[Any, ...]], buffer: int) -> torch.dtype:
    """The dtype in which operations read most parts of a buffer: in it no view is needed first."""
    dtypes = [x.dtype for step in steps if step[0] == CALL for x in places_in(step[2]) if x.buffer == buffer]
    return max(dtypes, key=dtypes.count, default=torch.uint8)
