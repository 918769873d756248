"""Where a recorded pass may still be refused: before it draws random numbers, or writes to memory of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fgnn.nn.backends.triton.effects import check_before_effects
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.backends.triton.tape import Check, Operation, Tape


def steps_before(run: Callable[[Tensor, Tensor], Tensor]) -> list[str]:
    """The operations of a pass over x and a buffer of ones before the check."""
    x, buffer = torch.ones(3, 4), torch.ones(4)
    with Tape([x]) as tape:
        result = run(x, buffer)
    check_before_effects(tape, [buffer])
    assert not tape.refused
    at = tape.steps.index(Check())
    assert Program(tape, [result])([x]) is not None
    return [str(step.call).split(".")[1] for step in tape.steps[:at] if isinstance(step, Operation)]


def test_a_pass_without_effects_is_checked_at_its_end() -> None:
    assert steps_before(lambda x, buffer: (x + 1.0).relu_()) == ["add", "relu_"]


def test_a_pass_is_checked_before_it_draws_numbers() -> None:
    assert steps_before(lambda x, buffer: torch.bernoulli(x * 0.5) + 1.0) == ["mul"]


def test_a_pass_is_checked_before_it_writes_to_what_it_was_given() -> None:
    assert steps_before(lambda x, buffer: x.mul(2.0).add_(1.0) + x.mul_(2.0)) == ["mul", "add_"]


def test_a_pass_is_checked_before_it_uses_a_buffer() -> None:
    """Not every operation says that it writes to its arguments."""
    assert steps_before(lambda x, buffer: x.mul(2.0) * buffer) == ["mul"]


def test_one_of_several_tensors_that_are_written_may_be_given() -> None:
    other = torch.ones(4)

    def run(x: Tensor, buffer: Tensor) -> Tensor:
        first, second = x.mul(2.0), x.mul(3.0)
        torch._foreach_zero_([first, second])
        torch._foreach_zero_([first, other])
        return first + second

    assert steps_before(run) == ["mul", "mul", "_foreach_zero_"]


def test_what_the_check_raises_ends_the_pass() -> None:
    x, kept = torch.ones(3), torch.zeros(3)
    with Tape([x]) as tape:
        y = x + 1.0
        kept.add_(y)
        result = y * kept
    check_before_effects(tape, [kept])
    program = Program(tape, [result])
    before = kept.clone()

    def refuse() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program([x], refuse)
    assert torch.equal(kept, before)
    (found,) = program([x]) or ()
    assert torch.equal(found, 2 * (before + 2))
