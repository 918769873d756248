"""Run a plan on the numbers of a batch: a forward pass of maximisation, a backward pass of choices.

The axes of tensors are states, then models, so that selecting states selects whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fgnn.infer.exact.builder import Step
from fgnn.infer.exact.plan import ExactPlan
from fgnn.infer.exact.problem import Problem, Source
from fgnn.infer.exact.shapes import DenseShape, ListedShape, Term
from fgnn.pgm import ModelBatch

# For a single model, broadcasting along inner axes shorter than this costs more than copying.
_INNER = 128


class Numbers:
    """The entries of each factor: (entries, B), (entries, 1) if all models share them, or (entries,) if B is 1."""

    def __init__(self, batch: ModelBatch, dtype: torch.dtype) -> None:
        self.batch = batch
        self.dtype = dtype
        self.single = len(batch) == 1
        self._states = batch.cardinalities.tolist()
        self._unary, *self._tables = rows_first(batch, dtype, self.single)

    def __getitem__(self, source: Source) -> Tensor:
        if source.kind == "unary":
            return self._unary[source.index][: self._states[source.index]]
        if source.kind == "table":
            return self._tables[source.group][source.index]
        budget = self.batch.budgets[source.group]
        counts = torch.arange(budget.scopes.shape[1] + 1, device=self.batch.device)[:, None]
        lower, upper = budget.at_least[:, source.index], budget.at_most[:, source.index]
        violated = (counts < lower) | (counts > upper)  # shape: (n + 1, B)
        rows = torch.zeros(violated.shape, dtype=self.dtype, device=self.batch.device)
        rows.masked_fill_(violated, -torch.inf)
        return rows.squeeze(-1) if self.single else rows


def rows_first(batch: ModelBatch, dtype: torch.dtype, single: bool = False) -> Iterator[Sequence[Tensor]]:
    """The unaries, then each group of tables: (entries, B) for each variable or table, B being 1 if models share it.

    If ``single``, the axis of models is left out.
    """
    for values in (batch.unary, *(t.distinct("values").flatten(2) for t in batch.tables)):
        rows = values.detach().to(dtype).permute(1, 2, 0).contiguous()
        yield (rows.squeeze(-1) if single else rows).unbind(0)


@torch.no_grad()
def run_plan(
    plan: ExactPlan, batch: ModelBatch, dtype: torch.dtype, check: Callable[[int, int], None] = lambda step, steps: None
) -> tuple[Tensor, Tensor]:
    """The best assignment of every model, (B, N), and its score, (B,) in ``dtype``.

    The plan and the batch are on one device. ``check`` is called before every step and may raise.
    """
    assert plan.steps is not None
    assert plan.problem is not None
    numbers = Numbers(batch, dtype)
    results: dict[int, Tensor] = {}
    choices: list[Tensor] = []
    total = batch.constant.to(dtype)
    for t, step in enumerate(plan.steps):
        check(t, len(plan.steps))
        # Only one step reads the result of another, so it is released.
        slots = [results.pop(i) if isinstance(i, int) else numbers[i] for i in step.inputs]
        if isinstance(step.shape, ListedShape):
            result, choice = _listed(step.shape, slots, numbers)
        else:
            result, choice = _dense(step.shape, slots, numbers)
        if not step.scope:  # the last variable of a component
            total = total + result[0]
        results[t] = result
        choices.append(choice)
    for source, entry in plan.problem.constants:
        total = total + numbers[source][entry]
    assignment = _back(plan.steps, plan.problem, choices, len(batch), batch.device)
    return assignment, total.expand(len(batch))


# ---- forward --------------------------------------------------------------------------------------------------------


def _listed(shape: ListedShape, slots: list[Tensor], numbers: Numbers) -> tuple[Tensor, Tensor]:
    for terms in shape.merges:
        slots.append(_sum_terms(slots, terms))
    first = shape.blocks[0]
    if not first:
        tail = () if numbers.single else (1,)
        best = torch.zeros((shape.rows, *tail), dtype=numbers.dtype, device=numbers.batch.device)
        return best, torch.zeros_like(best, dtype=torch.bool)
    best = _sum_terms(slots, first)
    choice = torch.zeros(best.shape, dtype=_choice_type(len(shape.lengths)), device=best.device)
    if len(shape.lengths) > 1 and len(first) == 1 and first[0].rows is None:
        best = best.clone()  # it is a slot, and the maximum is taken in place
    for r, length in enumerate(shape.lengths[1:], start=1):
        _improve(best[:length], choice[:length], _sum_terms(slots, shape.blocks[r]), r)
    return best, choice


def _dense(shape: DenseShape, inputs: list[Tensor], numbers: Numbers) -> tuple[Tensor, Tensor]:
    tail = () if numbers.single else (-1,)
    slots = []
    for spec, slot in zip(shape.inputs, inputs, strict=True):
        if spec.rows is not None:
            rows = spec.rows.clamp_min(0) if spec.gaps else spec.rows
            slot = slot.index_select(0, rows)
            if spec.gaps:
                slot = slot.masked_fill_((spec.rows < 0).view(-1, *(1 for _ in tail)), -torch.inf)
        slots.append(slot.reshape(*spec.shape, *tail))
    for merge in shape.merges:
        slots.append(_sum((slots[s] for s in merge), expand=numbers.single))
    states = shape.cardinalities[-1]
    axis = len(shape.cardinalities) - 1

    def candidate(r: int) -> Tensor:
        return _sum((slots[s].select(axis, r) for s in shape.terms), expand=numbers.single)

    best = candidate(0)
    if len(shape.terms) == 1:  # it is a view of its slot, and the maximum is taken in place
        best = best.clone(memory_format=torch.contiguous_format)
    choice = torch.zeros(best.shape, dtype=_choice_type(states), device=best.device)
    for r in range(1, states):
        _improve(best, choice, candidate(r), r)
    return best.reshape(shape.rows, *tail), choice.reshape(shape.rows, *tail)


def _sum_terms(slots: Sequence[Tensor], terms: Sequence[Term]) -> Tensor:
    parts = (slots[t.slot] if t.rows is None else slots[t.slot].index_select(0, t.rows) for t in terms)
    return _sum(parts, fresh=terms[0].rows is not None)


def _sum(parts: Iterator[Tensor], fresh: bool = False, expand: bool = False) -> Tensor:
    """Add up tensors that broadcast; in place if the first is ``fresh``, after `_expand_inner` if ``expand``."""
    total = next(parts)
    for part in parts:
        if expand:
            total, part = _expand_inner(total, part), _expand_inner(part, total)
        if fresh and (total.shape == part.shape or all(k >= j for k, j in zip(total.shape, part.shape, strict=True))):
            total.add_(part)
        else:
            total, fresh = total + part, True
    return total


def _improve(best: Tensor, choice: Tensor, candidate: Tensor, r: int) -> None:
    """Take the candidate where it is strictly better, so that ties keep the lowest state."""
    if choice.dtype == torch.bool:
        torch.gt(candidate, best, out=choice)
    else:
        choice.masked_fill_(candidate > best, r)
    torch.maximum(best, candidate, out=best)


def _choice_type(states: int) -> torch.dtype:
    return torch.bool if states <= 2 else torch.uint8 if states <= 256 else torch.int32


def _expand_inner(table: Tensor, other: Tensor) -> Tensor:
    """Copy a table along short inner axes that only the other has, so that the inner loop of the addition is long."""
    inner, axis = 1, table.dim()
    shape = list(table.shape)
    while axis > 0 and inner < _INNER:
        axis -= 1
        shape[axis] = max(table.shape[axis], other.shape[axis])
        inner *= shape[axis]
    touched = any(k > 1 for k in table.shape[axis:])
    return table.expand(shape).contiguous() if touched and shape != list(table.shape) else table


# ---- back -----------------------------------------------------------------------------------------------------------


def _back(steps: Sequence[Step], problem: Problem, choices: list[Tensor], models: int, device: torch.device) -> Tensor:
    """Follow the choices, last eliminated first. Each step determines the rows of its children."""
    digits: dict[int, Tensor] = {}
    rows: dict[int, Tensor] = {}
    last = torch.zeros(models, dtype=torch.int64, device=device)  # the row of a step without variables in its result
    for t in reversed(range(len(steps))):
        step, choice, row = steps[t], choices[t], rows.pop(t, last)
        choice = choice[:, None] if choice.dim() == 1 else choice
        chosen = choice.expand(-1, models).gather(0, row[None]).squeeze(0).long()
        shape = step.shape
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
