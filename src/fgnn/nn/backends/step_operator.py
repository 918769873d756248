"""The operator that takes recorded steps, half-layers and linear layers, and differentiates them itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fgnn.nn.backends import dense, half_step
from fgnn.nn.backends.choice import no_autocast
from fgnn.nn.backends.triton.ahead import compile_once
from fgnn.nn.backends.triton.replay import arithmetic, replayed

_KINDS: dict[str, Any] = {"half": half_step, "dense": dense}


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
def operator(tensors: list[Tensor], numbers: list[int], gammas: list[float], text: str) -> list[Tensor]:
    run = partial(_run, tensors, numbers, gammas, text, True)
    compile_once(text, tensors[0].device, run)
    return _replayed(("forward", text), numbers, gammas, tensors, run)


@operator.register_fake
def _(tensors: list[Tensor], numbers: list[int], gammas: list[float], text: str) -> list[Tensor]:
    return _run(tensors, numbers, gammas, text, False)


@torch.library.custom_op("fgnn::steps_backward", mutates_args=())
def operator_backward(
    grads: list[Tensor], given: list[bool], tensors: list[Tensor], outputs: list[Tensor], wants: list[bool],
    numbers: list[int], gammas: list[float], text: str,
) -> list[Tensor]:  # fmt: skip
    run = partial(_run_backward, grads, given, tensors, outputs, wants, numbers, gammas, text)
    kind = "backward", *given, *wants, text
    compile_once(kind, tensors[0].device, run)
    return _replayed(kind, numbers, gammas, [*grads, *tensors, *outputs], run)


def _replayed(
    kind: tuple[Any, ...], numbers: Sequence[int], gammas: Sequence[float], operands: list[Tensor], run: Any
) -> list[Tensor]:
    """What ``run`` returns; where kernels run, their launches are repeated from the third call of a kind on."""
    text: str = kind[-1]
    held = [numbers[k] for line in _parse(text).lines for k in line.held if k >= 0]
    if not held or " triton " not in text:
        found: list[Tensor] = run()
        return found
    programs = half_step.programs_of(held[0])  # with the index tensors that they read
    with no_autocast(operands[0].device):  # what is repeated contains its conversions
        return replayed(programs, (*kind, *numbers, *gammas, *arithmetic()), operands, run)[0]


def _run_backward(
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


@operator_backward.register_fake
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
        operator_backward(
            [g for g in some if g is not None], [g is not None for g in some], tensors, outputs, wants, *ctx.options
        )
    )
    return [next(found) if want else None for want in wants], None, None, None


operator.register_autograd(_backward, setup_context=_save)
