"""Cost function networks, the models of ``.wcsp`` and ``.cfn`` files, converted to graphical models.

A network asks for the assignment of least total cost below an upper bound U. The score of an assignment is minus its
cost. An entry becomes ``-inf`` exactly if no assignment with that entry can cost less than U: if its cost reaches U
even when every other function contributes its most negative cost. With costs of at least 0 that is "cost >= U". The
bound has no other effect: assignments that reach U only in sum keep their score.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fgnn.pgm.io.build import MOST_VARIABLES, TableRuns, table_size
from fgnn.pgm.io.stream import ModelText
from fgnn.pgm.model import GraphicalModel

# Entries charged for the Python objects of a budget, or of a table that a rule expands to.
OVERHEAD = 256


class CostNetwork:
    """Cost functions in the order of a file.

    Args:
        text: The file, for its limits and for error messages.
        cardinalities: The number of states of each variable.
        upper: The bound U; ``inf`` for none.
        maximise: Whether the file maximises; its values are stored as negated costs.
    """

    def __init__(self, text: ModelText, cardinalities: Sequence[int], upper: float, *, maximise: bool = False) -> None:
        self.text = text
        self.cardinalities = list(cardinalities)
        self.upper = upper
        self.maximise = maximise
        text.claim(sum(self.cardinalities), "the variables", "states")
        self._functions: deque[tuple[list[int], NDArray[np.float64]]] = deque()
        self._budgets: list[tuple[list[int], int, int]] = []
        self._later: list[Callable[[], None]] = []
        self._gain = 0.0  # sum of the negative minima of all functions so far

    def check_scope(self, scope: Sequence[int], place: str) -> None:
        """Reject a scope that repeats a variable."""
        if len(set(scope)) < len(scope):
            self.text.fail(f"Expected distinct variables in a scope (got {' '.join(map(str, scope[:20]))})", place)

    def claim(self, scope: Sequence[int], place: str) -> tuple[int, ...]:
        """The shape of a table over a scope, after claiming its entries."""
        if len(scope) > MOST_VARIABLES:
            self.text.fail(f"Expected at most {MOST_VARIABLES} variables in a table (got {len(scope)})", place)
        shape = tuple(self.cardinalities[i] for i in scope)
        self.text.claim(table_size(shape, self.text.most_entries), place)
        return shape

    def add(self, scope: Sequence[int], costs: NDArray[np.float64]) -> None:
        """Add a table of costs whose entries have been claimed; ``inf`` forbids."""
        self._gain += _negative_part(costs)
        self._functions.append((list(scope), costs))

    def add_budget(self, scope: Sequence[int], at_least: int, at_most: int, place: str) -> None:
        """Add a budget over binary variables; contradictory bounds make the network infeasible."""
        self.text.claim(len(scope) + OVERHEAD, place)
        low, high = max(at_least, 0), min(at_most, len(scope))
        if low > high:
            self.add((), np.array(np.inf))
        elif scope and (low > 0 or high < len(scope)):
            self._budgets.append((list(scope), low, high))

    def later(self, expand: Callable[[], None]) -> None:
        """Defer an expansion until the whole file has been read, when `forbids` is final."""
        self._later.append(expand)

    def forbids(self, cost: float) -> bool:
        """Whether no assignment below the bound can have this cost, in a function without negative costs."""
        return cost >= self.upper - self._gain

    def build(self) -> GraphicalModel:
        """The model whose score is minus the cost."""
        self.text.finished = True
        for expand in self._later:
            expand()
        model = GraphicalModel(np.array(self.cardinalities, dtype=np.int64))
        with TableRuns(model) as runs:
            while self._functions:  # popped, to free each table once it is converted
                scope, costs = self._functions.popleft()
                others = self._gain - _negative_part(costs)
                theta = np.array(-costs)
                theta[costs >= self.upper - others] = -np.inf
                runs.add(scope, theta)
        for scope, low, high in self._budgets:
            model.add_budget(scope, high, at_least=low)
        return model


def _negative_part(costs: NDArray[np.float64]) -> float:
    """The least cost, or 0 if none is negative."""
    return float(np.min(costs, initial=0.0))
