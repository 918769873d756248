"""Half-layers and linear layers in compiled code: one operator for as many of them in a row as a network has.

``torch.compile`` spends milliseconds on every result of every operator, several times over. A :class:`Recording`
therefore collects the steps while the network is traced, and hands on :class:`Pending` for their results. The
operator then takes all steps at once, as text and integers, and differentiates them itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fgnn.graph import Incidence
from fgnn.nn.backends import dense, half_step
from fgnn.nn.backends.half_step import Held

_KINDS: dict[str, Any] = {"half": half_step, "dense": dense}


class Step(NamedTuple):
    """A step to take: its kind, and the call in words, by handle, by γ and by its operands."""

    kind: str
    words: str
    held: Sequence[Held | None]
    gamma: float
    features: Sequence[Tensor]
    parameters: Sequence[Tensor]


class Pending:
    """Stands for a result of recorded steps: what layers ask of the tensor, and its number.

    It is no tensor, so that neither a graph nor anything that is traced later has a node for it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, place: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.place = place

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


class Recording:
    """Steps recorded so far.

    Operands and results are numbered: k is the k-th tensor from outside, -1 - k the k-th result of the steps. Whatever
    is written here is traced, instruction by instruction: parameters are therefore not looked for but listed.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.features: list[tuple[Tensor, int]] = []  # those from outside that are no parameters, with their numbers
        self.results = 0
        self.lines: list[str] = []
        self.numbers: list[int] = []
        self.held: list[tuple[Held, int]] = []  # where the numbers of an object begin
        self.gammas: list[float] = []

    def place(self, x: Tensor | Pending) -> int:
        """The number of a feature."""
        if isinstance(x, Pending):
            return x.place
        for one, k in self.features:
            if one is x:
                return k
        self.tensors.append(x)
        self.features.append((x, len(self.tensors) - 1))
        return len(self.tensors) - 1

    def hold(self, x: Held | None) -> int:
        """Where the numbers of an object begin: its handle, and what tells the shapes of results; -1 for None."""
        if x is None:
            return -1
        for one, k in self.held:
            if one is x:
                return k
        self.held.append((x, len(self.numbers)))
        self.numbers += [x.handle, x.num_factors, x.num_variables] if isinstance(x, Incidence) else [x.handle]
        return self.held[-1][1]

    def add(self, step: Step, results: int) -> None:
        """Record a step with so many results."""
        held = " ".join([str(self.hold(x)) for x in step.held])
        places = " ".join([str(self.place(x)) for x in step.features])
        span = f"{len(self.tensors)} {len(step.parameters)}"
        self.tensors += step.parameters
        self.lines.append(f"{step.kind} {step.words}:{results}:{held}:{places}:{span}")
        self.gammas.append(step.gamma)
        self.results += results

    def run(self, places: Sequence[int]) -> list[Tensor]:
        """Take all steps; the tensors with these numbers."""
        wanted = [p for p in places if p < 0]
        if not wanted:
            return [self.tensors[p] for p in places]
        keep = torch.is_grad_enabled()
        head = f"{int(keep)} {' '.join([str(p) for p in wanted])}"
        out: list[Tensor] = _op(self.tensors, self.numbers or [0], self.gammas, ";".join([head, *self.lines]))
        found = iter([out[-1 - p] for p in wanted] if keep else out)
        return [next(found) if p < 0 else self.tensors[p] for p in places]


_open: list[Recording] = []


def recording() -> bool:
    """Whether steps are being recorded."""
    return len(_open) > 0


def start() -> None:
    """Record the steps from here on, up to :func:`finish`; only they may read the features between."""
    _open.append(Recording())


def under_way() -> bool:
    """Whether steps have been recorded."""
    return recording() and len(_open[-1].lines) > 0


def finish(features: Sequence[Tensor]) -> list[Tensor]:
    """Take the recorded steps; the real tensors for ``features``."""
    steps = _open.pop()
    return steps.run([steps.place(x) for x in features])


def take(step: Step, sizes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    """The results of a step, of these shapes and dtypes; if steps are recorded, what stands for them."""
    steps = _open[-1] if recording() else Recording()
    last, device = -steps.results, step.parameters[0].device
    steps.add(step, len(sizes))
    if not recording():
        return steps.run([-1 - k for k in range(len(sizes))])
    pending = [Pending(*sizes[k], device, last - 1 - k) for k in range(len(sizes))]
    return cast(list[Tensor], pending)


# ---- the operator --------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    kind: str
    words: tuple[str, ...]
    held: tuple[int, ...]
    results: slice
    features: int  # of the operands, which come first
    places: tuple[int, ...]
    dead: tuple[int, ...]  # results that nothing reads from here on

    def call(self, values: Sequence[Tensor], numbers: Sequence[int], gamma: float, *, real: bool) -> Any:
        """The step's call."""
        held = [None if k < 0 else numbers[k : k + 3] for k in self.held]
        return _KINDS[self.kind].decode(self.words, held, gamma, values[: self.features], real=real)


class _Text(NamedTuple):
    keep: bool
    wanted: tuple[int, ...]  # numbers of results
    lines: tuple[_Line, ...]
    results: int


@lru_cache(maxsize=256)
def _parse(text: str) -> _Text:
    head, *rest = text.split(";")
    keep, *wanted = map(int, head.split())
    found: list[_Line] = []
    result = 0
    for line in rest:
        left, results, held, places, span = line.split(":")
        kind, *words = left.split()
        features, (first, count) = list(map(int, places.split())), map(int, span.split())
        own = slice(result, result + int(results))
        operands = (*features, *range(first, first + count))
        found.append(_Line(kind, tuple(words), tuple(map(int, held.split())), own, len(features), operands, ()))
        result = own.stop
    last = {p: k for k, line in enumerate(found) for p in line.places if p < 0 and p not in wanted}
    lines = [line._replace(dead=tuple(-1 - p for p in last if last[p] == k)) for k, line in enumerate(found)]
    return _Text(bool(keep), tuple(-1 - p for p in wanted), tuple(lines), result)


def _run(tensors: list[Tensor], numbers: list[int], gammas: list[float], text: str, real: bool) -> list[Tensor]:
    """Results and kept tensors; without gradients, the wanted results."""
    program = _parse(text)
    results: list[Any] = []
    kept: list[Tensor] = []
    for line, gamma in zip(program.lines, gammas, strict=True):
        kind, values = _KINDS[line.kind], _values(line, tensors, results)
        ys, some = (kind.forward if real else kind.shapes)(line.call(values, numbers, gamma, real=real), values)
        results += ys
        if program.keep:
            kept += some
        else:
            for k in line.dead:
                results[k] = None
    return [*results, *kept] if program.keep else [results[k] for k in program.wanted]


def _values(line: _Line, tensors: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    return [tensors[p] if p >= 0 else results[-1 - p] for p in line.places]


@torch.library.custom_op("fgnn::steps", mutates_args=())
def _op(tensors: list[Tensor], numbers: list[int], gammas: list[float], text: str) -> list[Tensor]:
    return _run(tensors, numbers, gammas, text, True)


@_op.register_fake
def _(tensors: list[Tensor], numbers: list[int], gammas: list[float], text: str) -> list[Tensor]:
    return _run(tensors, numbers, gammas, text, False)


@torch.library.custom_op("fgnn::steps_backward", mutates_args=())
def _op_backward(
    grads: list[Tensor], given: list[bool], tensors: list[Tensor], outputs: list[Tensor], wants: list[bool],
    numbers: list[int], gammas: list[float], text: str,
) -> list[Tensor]:  # fmt: skip
    program = _parse(text)
    results, rest = outputs[: program.results], outputs[program.results :]
    upstream = iter(grads)
    at: dict[int, Tensor] = {-1 - k: next(upstream) for k, there in enumerate(given) if there}
    needed: list[bool] = []
    for line in program.lines:
        needed += [any(_values(line, wants, needed))] * (line.results.stop - line.results.start)
    for line, gamma in zip(program.lines[::-1], gammas[::-1], strict=True):
        kind, operands = _KINDS[line.kind], _values(line, tensors, results)
        call = line.call(operands, numbers, gamma, real=True)
        count = kind.count_kept(call, operands)
        rest, kept = rest[: len(rest) - count], rest[len(rest) - count :]
        some = [at.pop(-1 - k, None) for k in range(line.results.start, line.results.stop)]
        wanted = _values(line, wants, needed)
        if not any(wanted) or all(g is None for g in some):
            continue
        found = kind.backward(call, operands, results[line.results], kept, some, wanted)
        for place, x, gradient, want in zip(line.places, operands, found, wanted, strict=True):
            if want and gradient is not None:
                gradient = gradient.to(x.dtype)
                at[place] = at[place] + gradient if place in at else gradient
    return _apart([at[k] if k in at else torch.zeros_like(x) for k, x in enumerate(tensors) if wants[k]], grads)


def _apart(xs: Iterable[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with memory of their own."""
    found = dense.own_memory(xs)
    taken = {x.untyped_storage().data_ptr() for x in others}
    for k, x in enumerate(found):
        memory = x.untyped_storage().data_ptr()
        if memory in taken and x.numel():
            found[k] = x.clone()
        taken.add(memory)
    return found


@_op_backward.register_fake
def _(
    grads: list[Tensor], given: list[bool], tensors: list[Tensor], outputs: list[Tensor], wants: list[bool],
    numbers: list[int], gammas: list[float], text: str,
) -> list[Tensor]:  # fmt: skip
    return [x.new_empty(x.shape) for x, want in zip(tensors, wants, strict=True) if want]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, *ctx.options = inputs
    ctx.set_materialize_grads(False)  # nothing reads most of the results
    ctx.save_for_backward(*tensors, *output)
    ctx.count = len(tensors)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    tensors, outputs = saved[: ctx.count], saved[ctx.count :]
    wants = [bool(wanted) for wanted in ctx.needs_input_grad[0]]
    some = grads[: _parse(ctx.options[-1]).results]
    found = iter(
        _op_backward(
            [g for g in some if g is not None], [g is not None for g in some], tensors, outputs, wants, *ctx.options
        )
    )
    return [next(found) if want else None for want in wants], None, None, None


_op.register_autograd(_backward, setup_context=_save)
