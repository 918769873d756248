"""Operations of a recorded pass that give the same numbers at every call, computed once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends.triton.tape import Launch, Operation, Place, Step, Tape, places_in

_MOST_BYTES = 1 << 22  # of all that is kept


def fold_constants(tape: Tape, results: Iterable[Tensor]) -> None:
    """Compute what follows from numbers alone, such as ranges, unless something may write to it later.

    Args:
        results: Tensors of the pass that the caller gets, and may change.
    """
    changed = {tape.place(x).buffer for x in results} | _changed(tape.steps)
    known: dict[int, Tensor] = {}
    steps: list[Step] = []
    room = _MOST_BYTES
    for step in tape.steps:
        if not (isinstance(step, Operation) and _follows(step, known) and changed.isdisjoint(step.buffers)):
            steps.append(step)
            continue
        found = _compute(step, known)
        room -= sum(x.nbytes for x in found)
        if room < 0:
            steps.append(step)
            room += sum(x.nbytes for x in found)
            continue
        known.update(zip(step.buffers, found, strict=True))
    for k, x in known.items():
        tape.buffers[k] = x
        tape.fixed.add(k)
    tape.steps = steps


def _changed(steps: Iterable[Step]) -> set[int]:
    """The buffers that something may write to."""
    found: set[int] = set()
    for step in steps:
        if isinstance(step, Launch):
            found.update(place.buffer for _, place in step.places)
        elif isinstance(step, Operation) and step.call._schema.is_mutable:
            found.update(place.buffer for place in places_in(step.args))
    return found


def _follows(step: Operation, known: Collection[int]) -> bool:
    """Whether an operation reads what is known alone, and makes something of it."""
    if not step.buffers or torch.Tag.nondeterministic_seeded in step.call.tags:
        return False
    return all(place.buffer in known for place in places_in(step.args))


def _compute(step: Operation, known: dict[int, Tensor]) -> Sequence[Tensor]:
    def given(x: Any) -> Any:
        if isinstance(x, Place):
            return x.within(known[x.buffer])
        return [given(y) for y in x] if isinstance(x, list) else x

    with torch.inference_mode(False), torch.no_grad():
        found = step.call(*given(step.args), **step.options)
    return [found] if isinstance(found, Tensor) else found
