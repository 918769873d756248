"""The candidates of an elimination step: the sums of its inputs, one choice of the eliminated variable at a time.

Semirings read these and differ only in how they combine them. The axes of tensors are states, then models, so that
selecting states selects whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fgnn.infer.exact.problem import Source
from fgnn.infer.exact.shapes import DenseInput, DenseShape, ListedShape, Shape, Term
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
        self._sums: dict[int, Sequence[Tensor]] = {}

    @property
    def tail(self) -> tuple[int, ...]:
        """The axis of the models in a reshape."""
        return () if self.single else (-1,)

    def __getitem__(self, source: Source) -> Tensor:
        if source.kind == "unary":
            return self._unary[source.index][: self._states[source.index]]
        if source.kind == "table":
            return self._tables[source.group][source.index]
        if source.group not in self._sums:  # lists of constraints never need them
            values = self.batch.counted[source.group].by_sum(self.dtype)
            self._sums[source.group] = _rows_first(values, self.dtype, self.single)
        return self._sums[source.group][source.index]


def rows_first(batch: ModelBatch, dtype: torch.dtype, single: bool = False) -> Iterator[Sequence[Tensor]]:
    """The unaries, then each group of tables: (entries, B) for each variable or table, B being 1 if models share it.

    If ``single``, the axis of models is left out.
    """
    for values in (batch.unary, *(t.distinct("values").flatten(2) for t in batch.tables)):
        yield _rows_first(values, dtype, single)


def _rows_first(values: Tensor, dtype: torch.dtype, single: bool) -> Sequence[Tensor]:
    """(B, C, entries) to C times (entries, B)."""
    rows = values.detach().to(dtype).permute(1, 2, 0).contiguous()
    return (rows.squeeze(-1) if single else rows).unbind(0)


class Candidates:
    """The candidates of a step: ``candidates[r]`` has a row for each state of the result that has an r-th choice.

    In a list these rows are a prefix of the result, ``lengths[r]`` long; in a full table they are all of it, with one
    axis per variable. A candidate may be a view of a slot: copy it before writing to it.
    """

    def __init__(self, shape: Shape, inputs: Sequence[Tensor], numbers: Numbers) -> None:
        self.shape, self.inputs, self.numbers = shape, inputs, numbers
        if isinstance(shape, ListedShape):
            self.slots = list(inputs)
            for terms in shape.merges:
                self.slots.append(_sum_terms(self.slots, terms))
        else:
            self.slots = [_as_table(spec, slot, numbers.tail) for spec, slot in zip(shape.inputs, inputs, strict=True)]
            for merge in shape.merges:
                self.slots.append(_sum((self.slots[s] for s in merge), expand=numbers.single))

    def __len__(self) -> int:
        return len(self.shape.lengths) if isinstance(self.shape, ListedShape) else self.shape.cardinalities[-1]

    def __getitem__(self, r: int) -> Tensor:
        shape = self.shape
        if isinstance(shape, DenseShape):
            axis = len(shape.cardinalities) - 1
            return _sum((self.slots[s].select(axis, r) for s in shape.terms), expand=self.numbers.single)
        if not shape.blocks[r]:  # no input of the step has numbers
            tail = () if self.numbers.single else (1,)
            return torch.zeros((shape.lengths[r], *tail), dtype=self.numbers.dtype, device=self.numbers.batch.device)
        return _sum_terms(self.slots, shape.blocks[r])

    def block(self, first: int, count: int) -> Tensor:
        """Several candidates of a full table from ``first`` on, along the axis of the eliminated variable."""
        assert isinstance(self.shape, DenseShape)
        axis = len(self.shape.cardinalities) - 1
        slots = (self.slots[s] for s in self.shape.terms)
        parts = (slot if slot.shape[axis] == 1 else slot.narrow(axis, first, count) for slot in slots)
        return _sum(parts, expand=self.numbers.single)

    def prefix(self, result: Tensor, r: int) -> Tensor:
        """The rows of a result that have an r-th choice."""
        return result[: self.shape.lengths[r]] if isinstance(self.shape, ListedShape) else result

    def fresh(self, r: int) -> Tensor:
        """``candidates[r]`` as a tensor of its own."""
        shape, candidate = self.shape, self[r]
        if isinstance(shape, DenseShape):
            is_view = len(shape.terms) == 1
        else:
            is_view = len(shape.blocks[r]) == 1 and shape.blocks[r][0].rows is None
        return candidate.clone(memory_format=torch.contiguous_format) if is_view else candidate


def _as_table(spec: DenseInput, slot: Tensor, tail: tuple[int, ...]) -> Tensor:
    """An input as a full table over the axes of its step."""
    if spec.rows is not None:
        rows = spec.rows.clamp_min(0) if spec.gaps else spec.rows
        slot = slot.index_select(0, rows)
        if spec.gaps:
            slot = slot.masked_fill_((spec.rows < 0).view(-1, *(1 for _ in tail)), -torch.inf)
    return slot.reshape(*spec.shape, *tail)


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
