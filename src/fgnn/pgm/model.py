"""A discrete graphical model in log-potentials, the input of every solver."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fgnn.pgm.arrays import counted, finite_sum, integers, log_potentials
from fgnn.pgm.factors import AllDifferent, Kind, Linear, Parity, Pattern
from fgnn.pgm.factors.budgets import Budget, BudgetChunk, BudgetGroup, group_budgets
from fgnn.pgm.factors.kind import (
    StructuredChunk,
    StructuredFactor,
    StructuredGroup,
    as_tuples,
    checked_numbers,
    group_structured,
)
from fgnn.pgm.factors.tables import Table, TableChunk, TableGroup, as_views, group_tables

# Assignments are scored in slices of about this many gathered entries, to bound temporary memory.
_SCORE_CHUNK = 1 << 22


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
        self._table_chunks: list[TableChunk] = []
        self._budget_chunks: list[BudgetChunk] = []
        self._structured_chunks: list[StructuredChunk] = []
        self._groups: tuple[tuple[TableGroup, ...], tuple[BudgetGroup, ...], tuple[StructuredGroup, ...]] | None = None
        self.constant = 0.0

    # ---- building -----------------------------------------------------------------------------------------

    def add_unary(self, variable: int, values: ArrayLike) -> None:
        """Add log-potentials θ_i; repeated calls sum."""
        i = self._check_variable(variable)
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
        variables = self._check_scopes(scopes)
        count, arity = variables.shape
        theta = log_potentials(values, "the tables")
        if arity < 2:
            raise ValueError(f"Expected tables over two or more variables (got {arity})")
        expected = self._cardinalities[variables]  # shape: (C, A)
        if theta.ndim != arity + 1 or len(theta) != count:
            raise ValueError(
                f"Expected values of shape (C, k_1, ..., k_A) for {count} scopes of {arity} variables "
                f"(got shape {theta.shape})"
            )
        wrong = np.nonzero((expected != np.asarray(theta.shape[1:])).any(1))[0]
        if wrong.size:
            c = int(wrong[0])
            raise ValueError(
                f"Expected a table of shape {tuple(expected[c].tolist())} over {tuple(variables[c].tolist())} "
                f"(got {theta.shape[1:]})"
            )
        self._table_chunks.append((variables, theta))
        self._groups = None

    def add_budget(self, scope: Sequence[int], at_most: int | None = None, *, at_least: int = 0) -> None:
        """Allow between ``at_least`` and ``at_most`` (default: all) of these binary variables to be 1."""
        upper = len(scope) if at_most is None else at_most
        self.add_budgets(np.asarray([scope]), np.asarray([upper]), at_least=np.asarray([at_least]))

    def add_budgets(self, scopes: ArrayLike, at_most: ArrayLike, *, at_least: ArrayLike = 0) -> None:
        """Add budgets over the same number of variables: ``scopes`` (C, n), bounds (C,) or one for all."""
        variables = self._check_scopes(scopes)
        count, size = variables.shape
        bounds = (("at_least", at_least), ("at_most", at_most))
        lower, upper = (np.broadcast_to(integers(values, name), (count,)).copy() for name, values in bounds)
        if size == 0:
            raise ValueError("Expected a budget over at least one variable (got an empty scope)")
        cards = self._cardinalities[variables]
        if (cards != 2).any():
            i = int(variables[cards != 2][0])
            raise ValueError(
                f"Expected binary variables in a budget (got variable {i} with {self._cardinalities[i]} states)"
            )
        if (lower < 0).any() or (upper < lower).any():
            c = int(np.nonzero((lower < 0) | (upper < lower))[0][0])
            raise ValueError(f"Expected 0 <= at_least <= at_most (got {lower[c]} and {upper[c]})")
        if (lower > size).any():
            raise ValueError(f"Expected at_least <= {size}, the size of the budget (got {int(lower.max())})")
        self._budget_chunks.append((variables, lower, np.minimum(upper, size)))
        self._groups = None

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
        cards = self._cardinalities[self._check_scopes([scope])[0]]
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
        """Add factors of a structured kind: ``scopes`` (C, n) over variables of the same cardinalities.

        Args:
            kind: What the factors share.
            scopes: Shape (C, n).
            numbers: What the kind calls its ``numbers``, each (C, ...).
        """
        variables = self._check_scopes(scopes)
        if not variables.size:
            raise ValueError(f"Expected a {kind.name} factor over at least one variable (got an empty scope)")
        shapes = np.unique(self._cardinalities[variables], axis=0)
        if len(shapes) > 1:
            got = " and ".join(str(tuple(shape)) for shape in shapes[:2].tolist())
            raise ValueError(f"Expected {kind.name} factors of the same cardinalities (got {got})")
        arrays = checked_numbers(kind, len(variables), numbers)
        shape = tuple(shapes[0].tolist())
        kind.check(shape, arrays)
        self._structured_chunks.append(StructuredChunk(kind, shape, variables, arrays))
        self._groups = None

    def condition(self, evidence: Mapping[int, int]) -> GraphicalModel:
        """A copy in which every state of an observed variable but the observed one is forbidden."""
        clamped = self.copy()
        for variable, state in evidence.items():
            i = self._check_variable(variable)
            if not 0 <= state < self._cardinalities[i]:
                raise self._bad_state(i, state)
            mask = np.full(int(self._cardinalities[i]), -np.inf)
            mask[state] = 0.0
            clamped.add_unary(i, mask)
        return clamped

    def expanded(self) -> GraphicalModel:
        """The same model with every structured factor written out as a table, which must be small enough."""
        if not self._structured_chunks:
            return self
        plain = self.copy()
        plain._structured_chunks, plain._groups = [], None
        for factor in self.structured():
            plain.add_table(factor.scope, factor.as_table())
        return plain

    def copy(self) -> GraphicalModel:
        """An independent copy; it shares the factors' arrays, which are never written to."""
        twin = copy.copy(self)
        twin._unary = self._unary.copy()
        twin._table_chunks = list(self._table_chunks)
        twin._budget_chunks = list(self._budget_chunks)
        twin._structured_chunks = list(self._structured_chunks)
        return twin

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
        return sum(len(scopes) for scopes, _ in self._table_chunks)

    @property
    def num_budgets(self) -> int:
        return sum(len(scopes) for scopes, _, _ in self._budget_chunks)

    @property
    def num_structured(self) -> int:
        """The number of factors of structured kinds."""
        return sum(len(chunk.scopes) for chunk in self._structured_chunks)

    def unary(self, variable: int) -> NDArray[np.float64]:
        """θ_i as a read-only view."""
        i = self._check_variable(variable)
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
        return self._grouped()[0]

    @property
    def budget_groups(self) -> tuple[BudgetGroup, ...]:
        """The budgets, grouped by size."""
        return self._grouped()[1]

    @property
    def structured_groups(self) -> tuple[StructuredGroup, ...]:
        """The factors of structured kinds, grouped by kind and cardinalities."""
        return self._grouped()[2]

    def tables(self) -> Iterator[Table]:
        """The tables, in insertion order."""
        for scopes, values in self._table_chunks:
            for scope, theta in zip(scopes.tolist(), values, strict=True):
                yield Table(tuple(scope), theta)

    def budgets(self) -> Iterator[Budget]:
        """The budgets, in insertion order."""
        for scopes, lower, upper in self._budget_chunks:
            for scope, low, high in zip(scopes.tolist(), lower.tolist(), upper.tolist(), strict=True):
                yield Budget(tuple(scope), low, high)

    def structured(self) -> Iterator[StructuredFactor]:
        """The factors of structured kinds, in insertion order."""
        for chunk in self._structured_chunks:
            yield from chunk.factors()

    def score(self, assignment: ArrayLike) -> Any:
        """The float64 score of one assignment (N,) as a float, or of B assignments (B, N) as an array (B,).

        An assignment that violates a constraint or selects a ``-inf`` entry scores ``-inf``.
        """
        x = np.asarray(assignment)
        if x.ndim not in (1, 2) or x.shape[-1] != self.num_variables:
            raise ValueError(f"Expected an assignment of {self.num_variables} variables (got shape {x.shape})")
        states = np.atleast_2d(integers(x, "states"))
        bad = (states < 0) | (states >= self._cardinalities)
        if bad.any():
            b, i = (int(v) for v in np.argwhere(bad)[0])
            raise self._bad_state(i, int(states[b, i]))
        widest = max([self.num_variables, *(group.scopes.size for groups in self._grouped() for group in groups)])
        step = max(1, _SCORE_CHUNK // max(1, widest))
        try:
            with np.errstate(over="raise"):
                parts = [self._score_block(states[at : at + step]) for at in range(0, len(states), step)]
        except FloatingPointError:
            raise ValueError("Expected log-potentials with a finite sum (got an overflow)") from None
        scores = np.concatenate(parts) if parts else np.zeros(0)
        return float(scores[0]) if x.ndim == 1 else scores

    def _score_block(self, states: NDArray[np.int64]) -> NDArray[np.float64]:
        total = self._unary[self._offsets[:-1] + states].sum(1) + self.constant
        for tables in self.table_groups:
            flat = tables.values.reshape(len(tables.values), -1)
            strides = np.cumprod([1, *tables.shape[:0:-1]])[::-1]
            cell = states[:, tables.scopes] @ strides  # shape: (B, C)
            total += flat[np.arange(len(flat)), cell].sum(1)
        for budgets in self.budget_groups:
            ones = states[:, budgets.scopes].sum(2)  # shape: (B, C)
            broken = ((ones < budgets.at_least) | (ones > budgets.at_most)).any(1)
            total[broken] = -np.inf
        for group in self.structured_groups:
            theta = group.kind.potentials({name: torch.from_numpy(v)[None] for name, v in group.numbers.items()})
            x = torch.from_numpy(states[:, group.scopes])  # shape: (B, C, n)
            total += group.kind.score(group.shape, x, theta).sum(1).numpy()
        return np.asarray(total, dtype=np.float64)

    def __eq__(self, other: object) -> bool:
        """Same variables, same log-potentials, same factors in the same order."""
        if not isinstance(other, GraphicalModel):
            return NotImplemented
        return (
            np.array_equal(self._cardinalities, other._cardinalities)
            and self.constant == other.constant
            and np.array_equal(self._unary, other._unary)
            and list(self.budgets()) == list(other.budgets())
            and self.num_tables == other.num_tables
            and self.num_structured == other.num_structured
            and all(
                a.scope == b.scope and np.array_equal(a.values, b.values)
                for a, b in zip(self.tables(), other.tables(), strict=True)
            )
            and all(
                (a.kind, a.scope) == (b.kind, b.scope)
                and all(np.array_equal(a.numbers[name], b.numbers[name]) for name in a.numbers)
                for a, b in zip(self.structured(), other.structured(), strict=True)
            )
        )

    def __repr__(self) -> str:
        cards = self._cardinalities
        states = "-".join(map(str, sorted({cards.min(), cards.max()}))) if cards.size else "no"
        parts = [f"{counted(self.num_variables, 'variable')} of {states} state{'' if states == '1' else 's'}"]
        if self.num_tables:
            arity = max(g.scopes.shape[1] for g in self.table_groups)
            parts.append(f"{counted(self.num_tables, 'table')} of arity <= {arity}")
        if self.num_budgets:
            size = max(g.scopes.shape[1] for g in self.budget_groups)
            parts.append(f"{counted(self.num_budgets, 'budget')} over <= {counted(size, 'variable')}")
        counts = Counter(factor.kind.name for factor in self.structured())
        parts += [f"{count} {name}" for name, count in counts.items()]
        return f"GraphicalModel({', '.join(parts)})"

    # ---- checks -------------------------------------------------------------------------------------------

    def _check_variable(self, variable: int) -> int:
        i = int(variable)
        if not 0 <= i < self.num_variables:
            raise ValueError(f"Expected a variable below {self.num_variables} (got {variable})")
        return i

    def _check_scopes(self, scopes: ArrayLike) -> NDArray[np.int64]:
        variables = integers(scopes, "variables in a scope").copy()
        if variables.ndim != 2:
            raise ValueError(f"Expected scopes of shape (C, A) (got {variables.shape})")
        wrong = variables[(variables < 0) | (variables >= self.num_variables)]
        if wrong.size:
            raise ValueError(f"Expected variables below {self.num_variables} in a scope (got {wrong.max()})")
        ordered = np.sort(variables, axis=1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if repeated.any():
            scope = tuple(variables[repeated][0].tolist())
            raise ValueError(f"Expected distinct variables in a scope (got {scope})")
        return variables

    def _bad_state(self, i: int, state: int) -> ValueError:
        return ValueError(f"Expected a state below {self._cardinalities[i]} for variable {i} (got {state})")

    def _grouped(self) -> tuple[tuple[TableGroup, ...], tuple[BudgetGroup, ...], tuple[StructuredGroup, ...]]:
        if self._groups is None:
            tables = group_tables(self._table_chunks)
            budgets, structured = group_budgets(self._budget_chunks), group_structured(self._structured_chunks)
            self._groups = (tables, budgets, structured)
            self._table_chunks = as_views(self._table_chunks, tables)
        return self._groups
