"""What a network can be applied to: the family of models its weights know."""

from __future__ import annotations

from dataclasses import dataclass

from fgnn.models.canonical import finite_tables
from fgnn.models.featurise import Featuriser
from fgnn.pgm import ModelBatch


@dataclass(frozen=True)
class Family:
    """Models of one make: how many states, which tables, budgets over how many variables.

    ``fixed`` names groups whose numbers are the same in all models, so that a network does not read them;
    ``any_size`` says that budgets of other sizes than those trained on can be read too.
    """

    states: int
    tables: tuple[str, ...] = ()  # shapes, such as "2x2"
    budgets: tuple[int, ...] = ()  # sizes trained on
    fixed: tuple[str, ...] = ()
    finite: bool = True
    any_size: bool = False
    name: str = ""

    @classmethod
    def of(cls, batch: ModelBatch, *, fixed: tuple[str, ...] = (), any_size: bool = False, name: str = "") -> Family:
        """The family of a batch's models."""
        return cls(
            states=int(batch.unary.shape[2]),
            tables=tuple(sorted(_shape(t.shape) for t in batch.tables)),
            budgets=tuple(sorted(int(u.scopes.shape[1]) for u in batch.budgets)),
            fixed=fixed,
            finite=bool(finite_tables(batch)),
            any_size=any_size,
            name=name,
        )

    def refusal(self, batch: ModelBatch) -> str | None:
        """Why the batch's models are not of this family; None where they are."""
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
        if self.finite and not bool(finite_tables(batch)):
            return "finite log-potentials (got -inf)"
        return None

    def featuriser(self, batch: ModelBatch, *, deep: bool, positions: str) -> Featuriser:
        """What reads models of the batch's structure as this family's networks do."""
        present = {name for name in self.fixed if _present(name, batch)}
        return Featuriser(
            batch,
            positions="none" if deep else positions,  # type: ignore[arg-type]
            centre=deep,
            fixed=present,
            budgets="by-size" if deep else "together",
            masks=not self.finite,
        )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _present(name: str, batch: ModelBatch) -> bool:
    if name == "budget":
        return bool(batch.budgets)
    return any(f"table{_shape(t.shape)}" == name for t in batch.tables)
