"""Half-layers and linear layers in compiled code: one operator for as many of them in a row as a network has.

``torch.compile`` spends milliseconds on every result of every operator, several times over. A :class:`Recording`
therefore collects the steps while the network is traced, and hands on empty tensors in place of their results. The
operator then takes all steps at once, as text and integers, and differentiates them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fgnn.nn.backends import dense, half_step

_KINDS: dict[str, Any] = {"half": half_step, "dense": dense}


class Recording:
    """Steps recorded so far.

    Operands and results are numbered: k is the k-th tensor from outside, -1 - k the k-th result of the steps.
    """

    def __init__(self, features: Sequence[Tensor]) -> None:
        self.features = len(features)
        self.tensors = list(features)
        self.results: list[Tensor] = []
        self.lines: list[str] = []
        self.numbers: list[int] = []
        self.gammas: list[float] = []

    def place(self, x: Tensor) -> int:
        """The number of an operand."""
        if not isinstance(x, nn.Parameter):
            for k in range(len(self.results) - 1, -1, -1):
                if self.results[k] is x:
                    return -1 - k
            for k in range(self.features):
                if self.tensors[k] is x:
                    return k
        self.tensors.append(x)
        return len(self.tensors) - 1

    def add(self, head: str, numbers: Sequence[int], gamma: float, tensors: Sequence[Tensor], results: int) -> None:
        """Record a step with so many results."""
        places = [str(self.place(x)) for x in tensors]
        self.lines.append(f"{head}:{len(numbers)}:{results}:{' '.join(places)}")
        self.numbers += numbers
        self.gammas.append(gamma)

    def run(self, places: Sequence[int]) -> list[Tensor]:
        """Take all steps; the tensors with these numbers."""
        wanted = [p for p in places if p < 0]
        if not wanted:
            return [self.tensors[p] for p in places]
        keep = torch.is_grad_enabled()
        head = f"{int(keep)} {' '.join([str(p) for p in wanted])}"
        out: list[Tensor] = _op(self.tensors, self.numbers, self.gammas, ";".join([head, *self.lines]))
        found = iter([out[-1 - p] for p in wanted] if keep else out)
        return [next(found) if p < 0 else self.tensors[p] for p in places]


_open: list[Recording] = []


def recording() -> bool:
    """Whether steps are being recorded."""
    return len(_open) > 0


def start(features: Sequence[Tensor]) -> None:
    """Record the steps from here on, up to :func:`finish`; only they may read the features between."""
    _open.append(Recording(features))


def finish(features: Sequence[Tensor]) -> list[Tensor]:
    """Take the recorded steps; the real tensors for ``features``."""
    steps = _open.pop()
    return steps.run([steps.place(x) for x in features])


def take(
    kind: str, words: str, numbers: Sequence[int], gamma: float, tensors: Sequence[Tensor],
    sizes: Sequence[tuple[Sequence[int], torch.dtype]],
) -> list[Tensor]:  # fmt: skip
    """The results of a step, of these shapes and dtypes; if steps are recorded, what stands for them.

    NaN stands for them, so that a mistake shows: what is computed from it before the steps are taken is NaN.
    """
    count, steps = len(sizes), _open[-1] if recording() else Recording(())
    steps.add(f"{kind} {words}", numbers, gamma, tensors, count)
    if not recording():
        return steps.run([-1 - k for k in range(count)])
    results = [tensors[0].new_full(size, float("nan"), dtype=dtype) for size, dtype in sizes]
    steps.results += results
    return results


# ---- the operator --------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    kind: str
    words: tuple[str, ...]
    numbers: slice
    results: slice
    places: tuple[int, ...]
    dead: tuple[int, ...]  # results that nothing reads from here on


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
    number = result = 0
    for line in rest:
        left, numbers, results, places = line.split(":")
        kind, *words = left.split()
        ends = slice(number, number + int(numbers)), slice(result, result + int(results))
        number, result = ends[0].stop, ends[1].stop
        found.append(_Line(kind, tuple(words), *ends, tuple(map(int, places.split())), ()))
    last = {p: k for k, line in enumerate(found) for p in line.places if p < 0 and p not in wanted}
    lines = [line._replace(dead=tuple(-1 - p for p in last if last[p] == k)) for k, line in enumerate(found)]
    return _Text(bool(keep), tuple(-1 - p for p in wanted), tuple(lines), result)


def _run(tensors: list[Tensor], numbers: list[int], gammas: list[float], text: str, real: bool) -> list[Tensor]:
    """Results and kept tensors; without gradients, the wanted results."""
    program = _parse(text)
    results: list[Any] = []
    kept: list[Tensor] = []
    for line, gamma in zip(program.lines, gammas, strict=True):
        kind = _KINDS[line.kind]
        call = kind.decode(line.words, numbers[line.numbers], gamma, real=real)
        ys, some = (kind.forward if real else kind.shapes)(call, _values(line, tensors, results))
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
        kind = _KINDS[line.kind]
        call = kind.decode(line.words, numbers[line.numbers], gamma, real=True)
        operands = _values(line, tensors, results)
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
