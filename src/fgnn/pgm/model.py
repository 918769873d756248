"""A discrete graphical model in log-potentials, the input of every solver."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fgnn.drawing import Sketch, States
from fgnn.pgm.arrays import finite_sum, integers, log_potentials
from fgnn.pgm.checks import check_state, checked_scopes, checked_variable, common_shape
from fgnn.pgm.describe import describe
from fgnn.pgm.factors import AllDifferent, Kind, Linear, Parity, Pattern
from fgnn.pgm.factors.budgets import Budget, BudgetGroup, BudgetKind
from fgnn.pgm.factors.grouping import Collection
from fgnn.pgm.factors.kind import StructuredFactor, StructuredGroup, as_tuples, checked_numbers
from fgnn.pgm.factors.tables import Table, TableGroup, TableKind
from fgnn.pgm.scoring import score_assignments
from fgnn.pgm.sketch import model_html, sketch_model


class GraphicalModel:
    r"""Discrete variables :math:`x_i \in \{0..k_i-1\}` with log-potentials to be maximised, eq. (map_def):

    .. math:: \text{score}(x) = \sum_i \theta_i(x_i) + \sum_c \theta_c(x_c)

    where a factor :math:`c` is a table of any arity, a budget, "between ``at_least`` and ``at_most`` of these binary
    variables are 1", or of a structured kind such as parity; the last two are never expanded into their tables.

    Args:
        cardinalities: The number of states of each variable.

    Example:
        >>> m = GraphicalModel([2, 2])
        >>> m.add_unary(0, [0.0, 0.5])
        >>> m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        >>> m.add_budget((0, 1), at_most=1)
        >>> m.score([1, 0])
        0.7
    """

    def __init__(self, cardinalities: Sequence[int] | NDArray[np.int64]) -> None:
        cards = integers(cardinalities, "cardinalities").copy()
        if cards.ndim != 1:
            raise ValueError(f"Expected one cardinality per variable (got shape {cards.shape})")
        if cards.size and cards.min() < 1:
            i = int(np.argmin(cards))
            raise ValueError(f"Expected at least one state for every variable (got {cards[i]} for variable {i})")
        self._cardinalities = cards
        self._cardinalities.flags.writeable = False
        self._offsets = np.concatenate([[0], np.cumsum(cards)]).astype(np.int64)
        self._unary = np.zeros(int(self._offsets[-1]))
        self._tables = Collection(TableGroup)
        self._budgets = Collection(BudgetGroup)
        self._structured = Collection(StructuredGroup)
        self.constant = 0.0

    # ---- building -----------------------------------------------------------------------------------------

    def add_unary(self, variable: int, values: ArrayLike) -> None:
        """Add log-potentials θ_i; repeated calls sum."""
        i = checked_variable(variable, self.num_variables)
        theta = log_potentials(values, f"variable {i}")
        if theta.shape != (int(self._cardinalities[i]),):
            raise ValueError(
                f"Expected {self._cardinalities[i]} log-potentials for variable {i} (got shape {theta.shape})"
            )
        unary = self._unary[self._offsets[i] : self._offsets[i + 1]]
        unary[:] = finite_sum(unary, theta, f"variable {i}")

    def add_unaries(self, values: ArrayLike) -> None:
        """Add log-potentials to all variables: the concatenation of all θ_i."""
        theta = log_potentials(values, "the unaries").reshape(-1)
        if theta.shape != self._unary.shape:
            raise ValueError(f"Expected {self._unary.size} log-potentials in total (got {theta.size})")
        self._unary[:] = finite_sum(self._unary, theta, "the unaries")

    def add_table(self, scope: Sequence[int], values: ArrayLike) -> None:
        """Add a factor over ``scope``; axis a of ``values`` runs over the states of ``scope[a]``.

        A scope of one variable adds a unary, an empty scope a constant.
        """
        theta = log_potentials(values, f"the table over {tuple(scope)}")
        if len(scope) == 0:
            if theta.size != 1:
                raise ValueError(f"Expected one value for a factor without variables (got shape {theta.shape})")
            self.constant += float(theta.reshape(()))
            return
        if len(scope) == 1:
            self.add_unary(scope[0], theta)
            return
        self.add_tables(np.asarray([scope]), theta[None])

    def add_tables(self, scopes: ArrayLike, values: ArrayLike) -> None:
        """Add factors of one shape: ``scopes`` (C, A), ``values`` (C, k_1, ..., k_A)."""
        self.add_factors(TableKind(), scopes, values=values)

    def add_budget(self, scope: Sequence[int], at_most: int | None = None, *, at_least: int = 0) -> None:
        """Allow between ``at_least`` and ``at_most`` (default: all) of these binary variables to be 1."""
        upper = len(scope) if at_most is None else min(at_most, len(scope))
        self.add_factors(BudgetKind(), [scope], at_least=[at_least], at_most=[upper])

    def add_budgets(self, scopes: ArrayLike, at_most: ArrayLike, *, at_least: ArrayLike = 0) -> None:
        """Add budgets over the same number of variables: ``scopes`` (C, n), bounds (C,) or one for all."""
        variables = integers(scopes, "variables in a scope")
        bounds = (("at_least", at_least), ("at_most", at_most))
        low, high = (np.broadcast_to(integers(values, name), variables.shape[:1]) for name, values in bounds)
        self.add_factors(BudgetKind(), variables, at_least=low, at_most=np.minimum(high, variables.shape[-1]))

    def add_exactly_one(self, scope: Sequence[int]) -> None:
        """Require that exactly one of these binary variables is 1."""
        self.add_budget(scope, 1, at_least=1)

    def add_at_most_one(self, scope: Sequence[int]) -> None:
        """Require that at most one of these binary variables is 1."""
        self.add_budget(scope, 1)

    def add_parity(self, scope: Sequence[int], value: int = 0) -> None:
        """Require an even (``value=0``) or odd (1) number of ones among these binary variables."""
        self.add_factors(Parity(), [scope], value=[value])

    def add_linear(
        self, scope: Sequence[int], weights: ArrayLike, *, at_least: int | None = None, at_most: int | None = None
    ) -> None:
        """Require ``at_least <= sum of w_i(x_i) <= at_most``; a missing bound does not bind.

        ``weights`` are integers: one per variable, which multiplies its state, or (n, K), one per state.
        """
        cards = self._cardinalities[checked_scopes([scope], self.num_variables)[0]]
        self.add_factors(Linear.of(cards, weights, at_least, at_most), [scope])

    def add_all_different(self, scope: Sequence[int]) -> None:
        """Require that no two of these variables are in the same state."""
        self.add_factors(AllDifferent(), [scope])

    def add_pattern(self, scope: Sequence[int], patterns: ArrayLike, scores: ArrayLike, default: float = 0.0) -> None:
        """Add ``scores[p]`` where the variables are in the joint state ``patterns[p]``, and ``default`` elsewhere."""
        states = integers(patterns, "states in a pattern")
        self.add_factors(
            Pattern(as_tuples(states.tolist())), [scope], scores=np.asarray(scores)[None], default=[default]
        )

    def add_factors(self, kind: Kind, scopes: ArrayLike, **numbers: ArrayLike) -> None:
        """Add factors of one kind: ``scopes`` (C, n) over variables of the same cardinalities.

        Args:
            kind: What the factors share.
            scopes: Shape (C, n).
            numbers: What the kind calls its ``numbers``, each (C, ...).
        """
        variables = checked_scopes(scopes, self.num_variables)
        arrays = checked_numbers(kind, len(variables), numbers)
        if not len(variables):
            return
        shape = common_shape(kind, self._cardinalities[variables])
        try:
            kind.check(shape, arrays)
        except ValueError as error:
            scope = tuple(variables[0].tolist())
            raise ValueError(f"{error} over the variables {scope}" + " and others" * (len(variables) > 1)) from None
        plain: dict[type[Kind], Collection[Any]] = {TableKind: self._tables, BudgetKind: self._budgets}
        plain.get(type(kind), self._structured).add(kind, shape, variables, arrays)

    def condition(self, evidence: Mapping[int, int]) -> GraphicalModel:
        """A copy in which every state of an observed variable but the observed one is forbidden."""
        clamped = self.copy()
        for variable, state in evidence.items():
            i = checked_variable(variable, self.num_variables)
            check_state(i, state, int(self._cardinalities[i]))
            mask = np.full(int(self._cardinalities[i]), -np.inf)
            mask[state] = 0.0
            clamped.add_unary(i, mask)
        return clamped

    def expanded(self) -> GraphicalModel:
        """The same model with every structured factor written out as a table, which must be small enough."""
        if not self.num_structured:
            return self
        plain = self.copy()
        plain._structured = Collection(StructuredGroup)
        for factor in self.structured():
            plain.add_table(factor.scope, factor.as_table())
        return plain

    def copy(self) -> GraphicalModel:
        """An independent copy; it shares the factors' arrays, which are never written to."""
        twin = copy.copy(self)
        twin._unary = self._unary.copy()
        twin._tables, twin._budgets, twin._structured = (
            self._tables.copy(),
            self._budgets.copy(),
            self._structured.copy(),
        )
        return twin

    def to_networkx(self) -> Any:
        """The factor graph as a networkx graph, with cardinalities, log-potentials and scopes as attributes."""
        from fgnn.pgm.convert import to_networkx

        return to_networkx(self)

    # ---- reading ------------------------------------------------------------------------------------------

    @property
    def cardinalities(self) -> NDArray[np.int64]:
        """The number of states of each variable, shape (N,)."""
        return self._cardinalities

    @property
    def num_variables(self) -> int:
        return int(self._cardinalities.size)

    @property
    def num_tables(self) -> int:
        return self._tables.count

    @property
    def num_budgets(self) -> int:
        return self._budgets.count

    @property
    def num_structured(self) -> int:
        """The number of factors of structured kinds."""
        return self._structured.count

    def unary(self, variable: int) -> NDArray[np.float64]:
        """θ_i as a read-only view."""
        i = checked_variable(variable, self.num_variables)
        view = self._unary[self._offsets[i] : self._offsets[i + 1]]
        view.flags.writeable = False
        return view

    @property
    def unaries(self) -> NDArray[np.float64]:
        """All θ_i concatenated, as a read-only view of shape (sum of cardinalities,)."""
        view = self._unary.view()
        view.flags.writeable = False
        return view

    @property
    def table_groups(self) -> tuple[TableGroup, ...]:
        """The tables, grouped by shape."""
        return self._tables.groups

    @property
    def budget_groups(self) -> tuple[BudgetGroup, ...]:
        """The budgets, grouped by size."""
        return self._budgets.groups

    @property
    def structured_groups(self) -> tuple[StructuredGroup, ...]:
        """The factors of structured kinds, grouped by kind and cardinalities."""
        return self._structured.groups

    @property
    def groups(self) -> tuple[StructuredGroup, ...]:
        """All factors, grouped by kind and cardinalities: tables, then budgets, then structured kinds."""
        return (*self.table_groups, *self.budget_groups, *self.structured_groups)

    def tables(self) -> Iterator[Table]:
        """The tables, in insertion order."""
        for chunk in self._tables.chunks:
            for scope, theta in zip(chunk.scopes.tolist(), chunk.values, strict=True):
                yield Table(tuple(scope), theta)

    def budgets(self) -> Iterator[Budget]:
        """The budgets, in insertion order."""
        for chunk in self._budgets.chunks:
            bounds = chunk.at_least.tolist(), chunk.at_most.tolist()
            for scope, low, high in zip(chunk.scopes.tolist(), *bounds, strict=True):
                yield Budget(tuple(scope), low, high)

    def structured(self) -> Iterator[StructuredFactor]:
        """The factors of structured kinds, in insertion order."""
        for chunk in self._structured.chunks:
            yield from chunk.factors()

    def score(self, assignment: ArrayLike) -> Any:
        """The float64 score of one assignment (N,) as a float, or of B assignments (B, N) as an array (B,).

        An assignment that violates a constraint or selects a ``-inf`` entry scores ``-inf``.
        """
        x = np.asarray(assignment)
        if x.ndim not in (1, 2) or x.shape[-1] != self.num_variables:
            raise ValueError(f"Expected an assignment of {self.num_variables} variables (got shape {x.shape})")
        scores = score_assignments(self, np.atleast_2d(integers(x, "states")))
        return float(scores[0]) if x.ndim == 1 else scores

    def __eq__(self, other: object) -> bool:
        """Same variables, same log-potentials, same factors in the same order."""
        if not isinstance(other, GraphicalModel):
            return NotImplemented
        return (
            np.array_equal(self._cardinalities, other._cardinalities)
            and self.constant == other.constant
            and np.array_equal(self._unary, other._unary)
            and list(self.tables()) == list(other.tables())
            and list(self.budgets()) == list(other.budgets())
            and list(self.structured()) == list(other.structured())
        )

    def _sketch_(self, states: States) -> Sketch:
        return sketch_model(self, states)

    def _repr_html_(self) -> str:
        return model_html(self)

    def __repr__(self) -> str:
        return f"GraphicalModel({describe(self)})"
