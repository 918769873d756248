"""The family of models that a network can read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.models.map.featurise import group_names
from fgnn.pgm import ModelBatch


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

    states: int
    tables: tuple[str, ...] = ()  # shapes, such as "2x2"
    budgets: tuple[int, ...] = ()  # sizes trained on
    fixed: tuple[str, ...] = ()
    finite: bool = True
    any_size: bool = False
    name: str = ""
    constants: tuple[tuple[float, ...], ...] = ()
    density: float = 0.0

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
