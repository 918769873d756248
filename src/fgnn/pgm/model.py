"""A discrete graphical model in log-potentials, the input of every solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fgnn.pgm.factors import Budget, BudgetGroup, Table, TableGroup
from fgnn.pgm.grouping import BudgetChunk, TableChunk, as_views, group_budgets, group_tables

# Assignments are scored in slices of about this many gathered entries, which bounds the temporaries.
_SCORE_CHUNK = 1 << 22


class GraphicalModel:
    r"""Discrete variables :math:`x_i \in \{0..k_i-1\}` with log-potentials to be maximised, eq. (map_def):

    .. math:: \text{score}(x) = \sum_i \theta_i(x_i) + \sum_c \theta_c(x_c)

    where a factor :math:`c` is a table of any arity or a budget, "between ``at_least`` and ``at_most`` of these
    binary variables are 1", which is never expanded into its :math:`2^n` table.

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
        cards = np.asarray(cardinalities)
        if cards.ndim != 1:
            raise ValueError(f"Expected one cardinality per variable, a flat sequence (got shape {cards.shape})")
        if cards.size and not np.issubdtype(cards.dtype, np.integer):
            raise ValueError(f"Expected integer cardinalities (got {cards.dtype})")
        cards = cards.astype(np.int64)
        if cards.size and cards.min() < 1:
            i = int(np.argmin(cards))
            raise ValueError(f"Expected at least one state for every variable (got {cards[i]} for variable {i})")
        self._cardinalities = cards
        self._cardinalities.flags.writeable = False
        self._offsets = np.concatenate([[0], np.cumsum(cards)]).astype(np.int64)
        self._unary = np.zeros(int(self._offsets[-1]))
        self._table_chunks: list[TableChunk] = []
        self._budget_chunks: list[BudgetChunk] = []
        self._groups: tuple[tuple[TableGroup, ...], tuple[BudgetGroup, ...]] | None = None
        self.constant = 0.0

    # ---- building -----------------------------------------------------------------------------------------

    def add_unary(self, variable: int, values: ArrayLike) -> None:
        """Add log-potentials θ_i; adding twice to one variable sums."""
        i = self._check_variable(variable)
        theta = _log_potentials(values, f"variable {i}")
        if theta.shape != (int(self._cardinalities[i]),):
            raise ValueError(
                f"Expected {self._cardinalities[i]} log-potentials for variable {i} (got shape {theta.shape})"
            )
        own = self._unary[self._offsets[i] : self._offsets[i + 1]]
        own[:] = _added(own, theta, f"variable {i}")

    def add_unaries(self, values: ArrayLike) -> None:
        """Add log-potentials to every variable at once: the concatenation of all θ_i, in order."""
        theta = _log_potentials(values, "the unaries").reshape(-1)
        if theta.shape != self._unary.shape:
            raise ValueError(f"Expected {self._unary.size} log-potentials in all (got {theta.size})")
        self._unary[:] = _added(self._unary, theta, "the unaries")

    def add_table(self, scope: Sequence[int], values: ArrayLike) -> None:
        """Add a factor over ``scope``; axis a of ``values`` runs over the states of ``scope[a]``.

        A scope of one variable adds a unary, an empty scope a constant.
        """
        theta = _log_potentials(values, f"the table over {tuple(scope)}")
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
        """Add many factors of one shape at once: ``scopes`` (C, A), ``values`` (C, k_1, ..., k_A)."""
        places = self._check_scopes(scopes)
        theta = _log_potentials(values, "the tables")
        if places.shape[1] < 2:
            raise ValueError(f"Expected tables over two or more variables (got {places.shape[1]})")
        expected = self._cardinalities[places]  # shape: (C, A)
        if theta.ndim != places.shape[1] + 1 or theta.shape[0] != places.shape[0]:
            raise ValueError(
                f"Expected values of shape (C, k_1, ..., k_A) for {places.shape[0]} scopes of "
                f"{places.shape[1]} variables (got shape {theta.shape})"
            )
        wrong = np.nonzero((expected != np.asarray(theta.shape[1:])).any(1))[0]
        if wrong.size:
            c = int(wrong[0])
            raise ValueError(
                f"Expected a table of shape {tuple(expected[c].tolist())} over {tuple(places[c].tolist())} "
                f"(got {theta.shape[1:]})"
            )
        self._table_chunks.append((places, theta))
        self._groups = None

    def add_budget(self, scope: Sequence[int], at_most: int | None = None, *, at_least: int = 0) -> None:
        """Allow between ``at_least`` and ``at_most`` (default: all) of these binary variables to be 1."""
        upper = len(scope) if at_most is None else at_most
        self.add_budgets(np.asarray([scope]), np.asarray([upper]), at_least=np.asarray([at_least]))

    def add_budgets(self, scopes: ArrayLike, at_most: ArrayLike, *, at_least: ArrayLike = 0) -> None:
        """Add many budgets over the same number of variables: ``scopes`` (C, n), bounds (C,) or one for all."""
        places = self._check_scopes(scopes)
        count, size = places.shape
        lower, upper = (_counts(b, count, name) for b, name in ((at_least, "at_least"), (at_most, "at_most")))
        if size == 0:
            raise ValueError("Expected a budget over at least one variable (got an empty scope)")
        cards = self._cardinalities[places]
        if (cards != 2).any():
            i = int(places[cards != 2][0])
            raise ValueError(
                f"Expected binary variables in a budget (got variable {i} with {self._cardinalities[i]} states)"
            )
        if (lower < 0).any() or (upper < lower).any():
            c = int(np.nonzero((lower < 0) | (upper < lower))[0][0])
            raise ValueError(f"Expected 0 <= at_least <= at_most (got {lower[c]} and {upper[c]})")
        if (lower > size).any():
            raise ValueError(f"Expected at_least <= {size}, the size of the budget (got {int(lower.max())})")
        self._budget_chunks.append((places, lower, np.minimum(upper, size)))
        self._groups = None

    def condition(self, evidence: Mapping[int, int]) -> GraphicalModel:
        """A copy in which the observed variables can only take their observed state (ids are kept)."""
        clamped = self.copy()
        for variable, state in evidence.items():
            i = self._check_variable(variable)
            if not 0 <= state < self._cardinalities[i]:
                raise ValueError(f"Expected a state below {self._cardinalities[i]} for variable {i} (got {state})")
            mask = np.full(int(self._cardinalities[i]), -np.inf)
            mask[state] = 0.0
            clamped.add_unary(i, mask)
        return clamped

    def copy(self) -> GraphicalModel:
        """An independent copy (the factors' arrays are shared; nothing writes to them)."""
        twin = GraphicalModel(self._cardinalities)
        twin._unary = self._unary.copy()
        twin._table_chunks = list(self._table_chunks)
        twin._budget_chunks = list(self._budget_chunks)
        twin._groups = self._groups
        twin.constant = self.constant
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

    def tables(self) -> Iterator[Table]:
        """The tables one by one, in the order they were added."""
        for scopes, values in self._table_chunks:
            for scope, theta in zip(scopes.tolist(), values, strict=True):
                yield Table(tuple(scope), theta)

    def budgets(self) -> Iterator[Budget]:
        """The budgets one by one, in the order they were added."""
        for scopes, lower, upper in self._budget_chunks:
            for scope, low, high in zip(scopes.tolist(), lower.tolist(), upper.tolist(), strict=True):
                yield Budget(tuple(scope), low, high)

    def score(self, assignment: ArrayLike) -> Any:
        """The float64 score of one assignment (N,) as a float, or of many (B, N) as an array (B,).

        An assignment that breaks a budget or meets a ``-inf`` entry scores ``-inf``.
        """
        x = np.asarray(assignment)
        if x.ndim not in (1, 2) or x.shape[-1] != self.num_variables:
            raise ValueError(f"Expected an assignment of {self.num_variables} variables (got shape {x.shape})")
        if x.size and not np.issubdtype(x.dtype, np.integer):
            raise ValueError(f"Expected integer states (got {x.dtype})")
        states = np.atleast_2d(x).astype(np.int64, copy=False)
        bad = (states < 0) | (states >= self._cardinalities)
        if bad.any():
            b, i = (int(v) for v in np.argwhere(bad)[0])
            raise ValueError(f"Expected a state below {self._cardinalities[i]} for variable {i} (got {states[b, i]})")
        sizes = [t.scopes.size for t in self.table_groups] + [u.scopes.size for u in self.budget_groups]
        widest = max([self.num_variables, *sizes])
        step = max(1, _SCORE_CHUNK // max(1, widest))
        try:
            with np.errstate(over="raise"):
                parts = [self._score_block(states[at : at + step]) for at in range(0, len(states), step)]
        except FloatingPointError:
            raise ValueError("Expected log-potentials whose sum float64 holds (got an overflow)") from None
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
        return np.asarray(total, dtype=np.float64)

    def __eq__(self, other: object) -> bool:
        """Same variables, same numbers, same factors in the same order."""
        if not isinstance(other, GraphicalModel):
            return NotImplemented
        return (
            np.array_equal(self._cardinalities, other._cardinalities)
            and self.constant == other.constant
            and np.array_equal(self._unary, other._unary)
            and self.num_tables == other.num_tables
            and self.num_budgets == other.num_budgets
            and all(
                a.scope == b.scope and np.array_equal(a.values, b.values)
                for a, b in zip(self.tables(), other.tables(), strict=True)
            )
            and all(
                (a.scope, a.at_least, a.at_most) == (b.scope, b.at_least, b.at_most)
                for a, b in zip(self.budgets(), other.budgets(), strict=True)
            )
        )

    def __repr__(self) -> str:
        cards = self._cardinalities
        states = "no" if not cards.size else str(cards.min())
        if cards.size and cards.min() != cards.max():
            states += f"-{cards.max()}"
        parts = [f"{_counted(self.num_variables, 'variable')} of {states} state{'' if states == '1' else 's'}"]
        if self.num_tables:
            arity = max(g.scopes.shape[1] for g in self.table_groups)
            parts.append(f"{_counted(self.num_tables, 'table')} of arity <= {arity}")
        if self.num_budgets:
            size = max(g.scopes.shape[1] for g in self.budget_groups)
            parts.append(f"{_counted(self.num_budgets, 'budget')} over <= {_counted(size, 'variable')}")
        return f"GraphicalModel({', '.join(parts)})"

    # ---- inner --------------------------------------------------------------------------------------------

    def _check_variable(self, variable: int) -> int:
        i = int(variable)
        if not 0 <= i < self.num_variables:
            raise ValueError(f"Expected a variable below {self.num_variables} (got {variable})")
        return i

    def _check_scopes(self, scopes: ArrayLike) -> NDArray[np.int64]:
        places = np.array(scopes)
        if places.ndim != 2:
            raise ValueError(f"Expected scopes of shape (C, A) (got {places.shape})")
        if places.size and not np.issubdtype(places.dtype, np.integer):
            raise ValueError(f"Expected integer variables in a scope (got {places.dtype})")
        places = places.astype(np.int64)
        if places.size and (places.min() < 0 or places.max() >= self.num_variables):
            worst = int(places.max() if places.max() >= self.num_variables else places.min())
            raise ValueError(f"Expected variables below {self.num_variables} in a scope (got {worst})")
        if places.shape[1] > 1:
            ordered = np.sort(places, axis=1)
            repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
            if repeated.any():
                scope = tuple(places[repeated][0].tolist())
                raise ValueError(f"Expected distinct variables in a scope (got {scope})")
        return places

    def _grouped(self) -> tuple[tuple[TableGroup, ...], tuple[BudgetGroup, ...]]:
        if self._groups is None:
            tables = group_tables(self._table_chunks)
            self._groups = (tables, group_budgets(self._budget_chunks))
            self._table_chunks = as_views(self._table_chunks, tables)
        return self._groups


def _log_potentials(values: ArrayLike, where: str) -> NDArray[np.float64]:
    """A private float64 copy, free of NaN and +inf."""
    theta = np.array(values, dtype=np.float64)
    if np.isnan(theta).any() or np.isposinf(theta).any():
        raise ValueError(f"Expected finite or -inf log-potentials (got NaN or +inf in {where})")
    return theta


def _added(old: NDArray[np.float64], new: NDArray[np.float64], where: str) -> NDArray[np.float64]:
    """The sum, which finite summands may not carry beyond float64: -inf would say that a state is forbidden."""
    try:
        with np.errstate(over="raise"):
            return old + new
    except FloatingPointError:
        raise ValueError(f"Expected log-potentials whose sum float64 holds (got an overflow in {where})") from None


def _counts(values: ArrayLike, count: int, name: str) -> NDArray[np.int64]:
    counts = np.asarray(values)
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"Expected an integer {name} (got {counts.dtype})")
    return np.broadcast_to(counts, (count,)).astype(np.int64)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
