"""The family of models that a network can read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fgnn.models.map.featurise import group_names
from fgnn.pgm import ModelBatch
from fgnn.schema import Between, Extended, Label, Length, check_fields, show

_MOST_CELLS = 1 << 20


def check_shape(text: str) -> None:
    """A rule: the shape of a table, such as ``2x3``."""
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5}){0,30}", text) or cells(text) > _MOST_CELLS:
        what = f"the shape of a table of at most {_MOST_CELLS:,} entries, such as 2x3"
        raise ValueError(f"Expected {what} (got {show(text)})")


def cells(shape: str) -> int:
    """The entries of a table of a shape such as ``2x3``."""
    return math.prod(map(int, shape.split("x")))


@dataclass(frozen=True)
class Family:
    """Models of the same kind: the number of states, the shapes of tables, the sizes of budgets.

    Attributes:
        fixed: Groups whose numbers are the same in all models, so that a network does not read them.
        finite: Whether all log-potentials are finite.
        any_size: Whether budgets of sizes not trained on can be read too.
        constants: The numbers of each fixed group.
        density: Tables per variable, by which weights are chosen: it distinguishes chains from grids.
    """

    states: Annotated[int, Between(1, 1 << 16)]
    tables: Annotated[tuple[Annotated[str, check_shape], ...], Length(1000)] = ()  # shapes, such as "2x2"
    budgets: Annotated[tuple[Annotated[int, Between(1, 10**6)], ...], Length(1000)] = ()  # sizes trained on
    fixed: Annotated[tuple[Label, ...], Length(1000)] = ()
    finite: bool = True
    any_size: bool = False
    name: Label = ""
    constants: Annotated[tuple[Annotated[tuple[Extended, ...], Length(_MOST_CELLS)], ...], Length(1000)] = ()
    density: Annotated[float, Between(0, 10**6)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        for group, numbers in zip(self.fixed, self.constants, strict=False):
            size = 2 if group == "budget" else cells(group.removeprefix("table")) if group in self._groups() else 0
            if len(numbers) != size:
                raise ValueError(f"Expected {size} constants of {group!r}, a group of the family (got {len(numbers)})")

    def _groups(self) -> set[str]:
        return {"budget", *(f"table{shape}" for shape in self.tables)}

    @classmethod
    def of(cls, batch: ModelBatch, *, fixed: tuple[str, ...] = (), any_size: bool = False, name: str = "") -> Family:
        """The family of a batch's models."""
        return cls(
            states=int(batch.unary.shape[2]),
            tables=tuple(sorted(_shape(t.shape) for t in batch.tables)),
            budgets=tuple(sorted(int(u.scopes.shape[1]) for u in batch.budgets)),
            fixed=fixed,
            finite=_finite(batch),
            any_size=any_size,
            name=name,
            constants=tuple(tuple(_numbers(group, batch)[0].tolist()) for group in fixed),
            density=round(sum(len(t.scopes) for t in batch.tables) / max(1, batch.num_variables), 3),
        )

    def refusal(self, batch: ModelBatch) -> str | None:
        """Why the models of a batch are not of this family; None where they are."""
        if batch.structured:
            return f"tables and budgets (got {batch.structured[0].kind.name} factors)"
        states = int(batch.unary.shape[2])
        if states != self.states or bool((batch.cardinalities > self.states).any()):
            return f"variables of {self.states} states (got {states})"
        unknown = [_shape(t.shape) for t in batch.tables if _shape(t.shape) not in self.tables]
        if unknown:
            return f"tables of shape {' or '.join(self.tables) or 'none'} (got {unknown[0]})"
        sizes = [int(u.scopes.shape[1]) for u in batch.budgets]
        if sizes and not self.budgets:
            return "no budgets (got some)"
        if not self.any_size:
            wrong = [s for s in sizes if s not in self.budgets]
            if wrong:
                return f"budgets over {' or '.join(map(str, self.budgets))} variables (got {wrong[0]})"
        if self.finite and not _finite(batch):
            return "finite log-potentials (got -inf)"
        for group, wanted in zip(self.fixed, self.constants, strict=False):
            if group not in group_names(batch):
                continue
            numbers = _numbers(group, batch)
            if not torch.allclose(numbers, numbers.new_tensor(wanted).expand_as(numbers), atol=1e-5):
                return f"{group} of {list(wanted)} in every model, as in training (got other numbers)"
        return None


def _finite(batch: ModelBatch) -> bool:
    """Whether all tables and all unaries of real states are finite."""
    finite = torch.isfinite(batch.unary[:, batch.state_mask]).all()
    for t in batch.tables:
        finite = finite & torch.isfinite(t.distinct("values")).all()
    return bool(finite)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _numbers(group: str, batch: ModelBatch) -> Tensor:
    """The entries of each table or the bounds of each budget of a group.  # shape: (factors of all models, ·)"""
    if group == "budget":
        bounds = [torch.stack([u.at_least, u.at_most], -1).flatten(0, 1) for u in batch.budgets]
        return torch.cat(bounds).double()
    values = [t.distinct("values").flatten(0, 1) for t in batch.tables if f"table{_shape(t.shape)}" == group]
    return torch.cat(values).flatten(1).double()
