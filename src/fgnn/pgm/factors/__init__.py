"""The kinds of factor, one file each."""

from fgnn.pgm.factors.all_different import AllDifferent
from fgnn.pgm.factors.automaton import AutomatonKind
from fgnn.pgm.factors.budgets import Budget, BudgetGroup, BudgetKind
from fgnn.pgm.factors.counter import Counter
from fgnn.pgm.factors.kind import Kind, StructuredFactor, StructuredGroup
from fgnn.pgm.factors.linear import Linear
from fgnn.pgm.factors.parity import Parity
from fgnn.pgm.factors.pattern import Pattern
from fgnn.pgm.factors.tables import Table, TableGroup, TableKind

# The kinds that a model file may name: all that are imported here.
KINDS: dict[str, type[Kind]] = {
    kind.name: kind
    for kind in tuple(globals().values())
    if isinstance(kind, type) and issubclass(kind, Kind) and kind.name
}

__all__ = [
    "KINDS",
    "AllDifferent",
    "AutomatonKind",
    "Budget",
    "BudgetGroup",
    "BudgetKind",
    "Counter",
    "Kind",
    "Linear",
    "Parity",
    "Pattern",
    "StructuredFactor",
    "StructuredGroup",
    "Table",
    "TableGroup",
    "TableKind",
]
