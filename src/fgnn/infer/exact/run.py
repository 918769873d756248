"""Run a plan on the numbers of a batch: a forward pass of maximisation, a backward pass of choices.

The axes of tensors are states, then models, so that selecting states selects whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fgnn.infer.exact.builder import Step
from fgnn.infer.exact.candidates import Candidates, Numbers
from fgnn.infer.exact.plan import ExactPlan
from fgnn.infer.exact.problem import Problem
from fgnn.infer.exact.shapes import DenseShape, ListedShape
from fgnn.pgm import ModelBatch

# A step with at least this many choices for at most this many rows takes many choices at once.
_MANY_CHOICES, _FEW_ROWS = 64, 1 << 12
_BLOCK = 1 << 20  # entries at once


@torch.no_grad()
def run_plan(
    plan: ExactPlan, batch: ModelBatch, dtype: torch.dtype, check: Callable[[int, int], None] = lambda step, steps: None
) -> tuple[Tensor, Tensor]:
    """The best assignment of every model, (B, N), and its score, (B,) in ``dtype``.

    The plan and the batch are on one device. ``check`` is called before every candidate and may raise.
    """
    assert plan.steps is not None
    assert plan.problem is not None
    numbers = Numbers(batch, dtype)
    results: dict[int, Tensor] = {}
    choices: list[Tensor] = []
    total = batch.constant.to(dtype)
    for t, step in enumerate(plan.steps):
        # Only one step reads the result of another, so it is released.
        inputs = [results.pop(i) if isinstance(i, int) else numbers[i] for i in step.inputs]
        result, choice = _maximise(Candidates(step.shape, inputs, numbers), partial(check, t, len(plan.steps)))
        if not step.scope:  # the last variable of a component
            total = total + result[0]
        results[t] = result
        choices.append(choice)
    for source, entry in plan.problem.constants:
        total = total + numbers[source][entry]

    def choose(t: int, rows: Tensor) -> Tensor:
        choice = choices[t][:, None] if choices[t].dim() == 1 else choices[t]
        return choice.expand(-1, len(batch)).gather(0, rows[None]).squeeze(0).long()

    assignment = follow_choices(plan.steps, plan.problem, choose, len(batch), batch.device)
    return assignment, total.expand(len(batch))


def _maximise(candidates: Candidates, check: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """The best candidate for each state of the result, and which one it is."""
    check()
    rows, count = candidates.shape.rows, len(candidates)
    shape = (rows, *candidates.numbers.tail)
    rows *= len(candidates.numbers.batch)
    if isinstance(candidates.shape, DenseShape) and count >= _MANY_CHOICES and rows <= _FEW_ROWS:
        best, choice = _maximise_blocks(candidates, max(1, _BLOCK // rows), check)
        return best.reshape(shape), choice.reshape(shape)
    best = candidates.fresh(0)
    choice = torch.zeros(best.shape, dtype=_choice_type(count), device=best.device)
    for r in range(1, count):
        check()
        _improve(candidates.prefix(best, r), candidates.prefix(choice, r), candidates[r], r)
    return best.reshape(shape), choice.reshape(shape)


def _maximise_blocks(candidates: Candidates, size: int, check: Callable[[], None]) -> tuple[Tensor, Tensor]:
    """The same for ``size`` choices at a time."""
    axis = -1 if candidates.numbers.single else -2
    best: Tensor | None = None
    choice = torch.zeros(0)
    for first in range(0, len(candidates), size):
        check()
        block = candidates.block(first, min(size, len(candidates) - first))
        value = block.amax(axis)
        # On ties, argmax of floats returns any maximum; argmax of this comparison returns the first.
        chosen = first + (block == value.unsqueeze(axis)).to(torch.int8).argmax(axis)
        if best is not None:
            chosen = torch.where(value > best, chosen, choice)
            value = torch.maximum(value, best)
        best, choice = value, chosen
    assert best is not None
    return best, choice


def _improve(best: Tensor, choice: Tensor, candidate: Tensor, r: int) -> None:
    """Take the candidate where it is strictly better, so that ties keep the lowest state."""
    if choice.dtype == torch.bool:
        torch.gt(candidate, best, out=choice)
    else:
        choice.masked_fill_(candidate > best, r)
    torch.maximum(best, candidate, out=best)


def _choice_type(states: int) -> torch.dtype:
    return torch.bool if states <= 2 else torch.uint8 if states <= 256 else torch.int32


# ---- back -----------------------------------------------------------------------------------------------------------


def follow_choices(
    steps: Sequence[Step],
    problem: Problem,
    choose: Callable[[int, Tensor], Tensor],
    models: int,
    device: torch.device,
) -> Tensor:
    """The assignments (models, N) that the choices lead to, last eliminated first.

    ``choose`` gives the choice of step t at a row of its result for every model. Each step determines the rows of its
    children.
    """
    digits: dict[int, Tensor] = {}
    rows: dict[int, Tensor] = {}
    last = torch.zeros(models, dtype=torch.int64, device=device)  # the row of a step without variables in its result
    for t in reversed(range(len(steps))):
        step, row = steps[t], rows.pop(t, last)
        chosen, shape = choose(t, row), step.shape
        if isinstance(shape, ListedShape):
            joint = shape.starts.index_select(0, chosen) + row
            digits[step.variable] = shape.digits.index_select(0, joint).long()
            for c, child_rows in zip(step.children, shape.child_rows, strict=True):
                rows[c] = child_rows.index_select(0, joint).long()
        else:
            digits[step.variable] = chosen
            for c, listed_rows in zip(step.children, shape.listed_rows, strict=True):
                flat = _flat(steps[c], problem, digits)
                # In a model without feasible assignments this may be a state that is not in the list.
                rows[c] = flat if listed_rows is None else listed_rows.index_select(0, flat).long().clamp_min(0)
    arrays = (problem.states, problem.fixed, problem.variables)
    states, fixed, variables = (torch.as_tensor(x, device=device) for x in arrays)
    out = fixed[:, None].expand(-1, models).clone()
    if len(variables):
        out[variables] = states.gather(1, torch.stack([digits[f] for f in range(len(variables))]))
    return out.T.contiguous()


def _flat(step: Step, problem: Problem, digits: dict[int, Tensor]) -> Tensor:
    """The index of the chosen states in a full table whose first variable varies fastest."""
    index = torch.zeros_like(digits[step.scope[-1]])
    for variable in reversed(step.scope):
        index = index * problem.cardinalities[variable] + digits[variable]
    return index
