"""Passes over layers, replayed: the launches of an earlier call, at other addresses.

Sizes, grids and kernels of a pass follow from the shapes of its operands. To find them takes Python several times as
long as the kernels of a small network run, so it is done once for each kind of call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor

from fgnn.nn.backends.triton.copies import merge_copies
from fgnn.nn.backends.triton.joint_steps import join_steps
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.backends.triton.tape import Place, Tape
from fgnn.runtime.float32 import allows_tf32
from fgnn.runtime.kernel_launch import local

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
    # nothing is launched, or it is part of a larger pass that is being recorded
    if local.notes is not None or local.tape is not None:
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
        refused = bool(tape.refused) or any(x is not None and not x.numel() for x in results)
        if not refused:
            join_steps(tape, cast(Tensor, operands[0]).device)
    except torch.OutOfMemoryError:
        programs[at] = _ATTEMPTS
        return list(run()), None
    parts = {} if refused else merge_copies(tape, {tape.place(x).buffer for x in results if x is not None})
    programs[at] = program + 1 if refused else Program(tape, results, joint_from, parts)
    return results, None


def arithmetic() -> tuple[Any, ...]:
    """The settings of torch that passes depend on, for their keys."""
    return allows_tf32(), torch.are_deterministic_algorithms_enabled()
