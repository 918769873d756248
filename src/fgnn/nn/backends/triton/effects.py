"""Where a recorded pass begins to do what can be seen of it besides its results.

What comes before can be launched while it is still unknown whether the pass is the right one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from fgnn.nn.backends.triton.tape import Check, Operation, Tape, places_in, uses


def check_before_effects(tape: Tape, kept: Iterable[Tensor]) -> None:
    """Put a check before the first step that draws random numbers or may write to memory that the pass did not make.

    Args:
        kept: What launches and operations may write to, such as running statistics.
    """
    kept_at = {x.untyped_storage().data_ptr() for x in kept}
    fixed = {k: x for k in tape.fixed if (x := tape.buffers[k]) is not None}
    outside = {k for k, x in fixed.items() if x.untyped_storage().data_ptr() in kept_at}
    made = tape.made
    effects = (
        at for at, step in enumerate(tape.steps)
        if not outside.isdisjoint(uses(step)) or (isinstance(step, Operation) and _has_effects(step, made))
    )  # fmt: skip
    tape.steps.insert(next(effects, len(tape.steps)), Check())


def _has_effects(step: Operation, made: Collection[int]) -> bool:
    if torch.Tag.nondeterministic_seeded in step.call.tags:
        return True
    arguments = zip(step.call._schema.arguments, step.args, strict=False)
    written = [x for argument, x in arguments if argument.alias_info is not None and argument.alias_info.is_write]
    return any(place.buffer not in made for place in places_in(written))
