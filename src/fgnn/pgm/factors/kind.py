"""What a kind of structured factor knows, so that methods need not know the kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fgnn.pgm.arrays import integers, log_potentials
from fgnn.pgm.factors.counter import Counter
from fgnn.pgm.factors.gadget import Gadget

Array = NDArray[Any]
Shape = tuple[int, ...]

_MOST_CELLS = 1 << 20  # of a factor written out as a table


class LackingPart(ValueError):
    """A method needs a part that a kind of factor does not have."""


@dataclass(frozen=True)
class Row:
    """One constraint ``at_least <= sum of weights[a][x_a] <= at_most`` on some variables of a scope."""

    positions: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]  # of every state, by position
    at_least: int
    at_most: int


@dataclass(frozen=True)
class Kind(ABC):
    r"""A kind of factor whose table would be too large: a frozen dataclass whose fields all factors of a group share.

    A group of C factors over n variables each has *numbers* of its own, (C, ...) in a model and (B, C, ...) in a batch.
    `potentials` turns them into S log-potentials :math:`\theta`, and the factor selects one of them:
    :math:`\theta_c(x_c) = \theta[\sigma(x_c)]`, or :math:`-\infty`. Methods ask for

    - ``score``, which is all that ``brute-force`` needs;
    - ``messages``, for ``max-product`` and ``sum-product``;
    - ``best``, for ``ad3``, which projects with ``project`` or, on a CPU, with a few best joint states;
    - ``rows``, linear constraints that say the same, for ``toulbar2``;
    - ``counter``, if the factor depends on a sum alone, for ``exact``, ``search``, ``dual``, ``lp``, ``toulbar2`` and
      exact sums;
    - ``gadget``: tables and budgets over auxiliary variables, for every other method, and where there are no rows or no
      best joint states.

    A method refuses a kind that lacks the part it needs (`LackingPart`). Fields are integers or nested tuples of them.

    Attributes:
        name: Names the groups of a structure and the arrays of a ``.fgm`` file.
        numbers: The type, int or float, of each of a factor's numbers.
    """

    name: ClassVar[str] = ""
    numbers: ClassVar[Mapping[str, type]] = {}

    @abstractmethod
    def check(self, shape: Shape, numbers: Mapping[str, Array]) -> None:
        """Raise a `ValueError` if factors over variables of these cardinalities cannot have these numbers."""

    @abstractmethod
    def potentials(self, shape: Shape, numbers: Mapping[str, Tensor]) -> Tensor:
        """The log-potentials that factors select from.  # shape: (B, C, ...) to (B, C, S)"""

    @abstractmethod
    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        """The log-potential of joint states: x (..., C, n) and θ (..., C, S), which broadcast, to (..., C)."""

    def messages(self, theta: Tensor, nu: Sequence[Tensor], *, total: bool) -> list[Tensor]:
        r"""The messages to every variable, :math:`\max` (or :math:`\log \sum \exp`, if ``total``) over the others of
        :math:`\theta_c(x_c) + \sum_{i' \ne i} \nu_{i'}(x_{i'})`, with ``-inf`` where nothing is allowed.

        Args:
            theta: Shape (S, C, B); B may be 1 where the models share it.
            nu: The incoming messages, (k_a, C, B) by axis.
            total: Whether to sum instead of maximising.
        """
        raise LackingPart(f"Expected factors that send messages (got {self.name}, a kind without)")

    def ratios(self, theta: Tensor, nu: Tensor, *, total: bool) -> Tensor:
        """As `messages`, for binary variables and log-ratios of state 1 to state 0: (n, C, B) in and out."""
        sent = self.messages(theta, [torch.stack([torch.zeros_like(r), r]) for r in nu.unbind(0)], total=total)
        return torch.stack([m[1] - m[0] for m in sent])

    def best(self, shape: Shape, theta: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        r"""The largest :math:`\theta_c(x_c) + \sum_i \nu_i(x_i)` of P factors, and a joint state that has it.

        Args:
            shape: The cardinalities.
            theta: Shape (P, S), float64.
            nu: Shape (P, n, K), float64; ``-inf`` for states that are forbidden or beyond a variable's own.

        Returns:
            Values (P,), ``-inf`` where nothing is allowed, and joint states (P, n).
        """
        raise LackingPart(f"Expected factors that know their best joint state (got {self.name}, a kind that does not)")

    def project(self, theta: Tensor, z: Tensor) -> Tensor:
        """The nearest point to z in the convex hull of the allowed joint states, for constraints on binary variables.

        Args:
            theta: Shape (S, C, B).
            z: Shape (n, C, B), of state 1; so is the result.
        """
        raise LackingPart(f"Expected factors with a projection (got {self.name}, a kind without)")

    def rows(self, shape: Shape) -> tuple[Row, ...]:
        """Linear constraints that allow the same joint states, for kinds that only forbid or allow."""
        raise LackingPart(f"Expected factors made of linear constraints (got {self.name}, a kind that is not)")

    def counter(self, shape: Shape) -> Counter | None:
        """The sum that the factor depends on; None if it depends on more, or on sums of too large a range."""
        return None

    def gadget(self, shape: Shape) -> Gadget:
        """Tables and budgets over the scope and auxiliary variables that say the same."""
        raise LackingPart(f"Expected factors made of tables and budgets (got {self.name}, a kind that is not)")

    def local_gadget(self, shape: Shape) -> Gadget:
        """As `gadget`, if possible without auxiliary variables, for methods that change one variable at a time."""
        return self.gadget(shape)

    def has(self, part: str) -> bool:
        """Whether the kind has a part that not all kinds have, such as ``best``."""
        return getattr(type(self), part) is not getattr(Kind, part)

    # ---- for all kinds --------------------------------------------------------------------------------------------

    def as_table(self, shape: Shape, numbers: Mapping[str, Array]) -> NDArray[np.float64]:
        """The table (k_1, ..., k_n) of one factor."""
        if math.prod(shape) > _MOST_CELLS:
            raise ValueError(
                f"Expected a {self.name} factor of at most {_MOST_CELLS:,} joint states (got {math.prod(shape):,})"
            )
        cells = np.indices(shape).reshape(len(shape), -1).T
        scores = self.score(shape, torch.from_numpy(cells.copy())[:, None], _of_one(self, shape, numbers))
        return np.asarray(scores.reshape(shape).numpy())

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """The fields, integers or nested tuples of them, as arrays for a file."""
        return {f.name: np.asarray(getattr(self, f.name), dtype=np.int64) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.int64]]) -> Self:
        for f in fields(cls):
            axes = str(f.type).count("tuple[")
            if arrays[f.name].ndim != axes:
                raise ValueError(f"Expected {f.name} with {axes} axes (got {arrays[f.name].ndim})")
        return cls(**{name: as_tuples(array.tolist()) for name, array in arrays.items()})


@dataclass(frozen=True, eq=False)
class StructuredFactor:
    """One factor: its kind, which may be shared, and its own numbers."""

    kind: Kind
    scope: tuple[int, ...]
    shape: Shape
    numbers: Mapping[str, Array]

    def score(self, x: NDArray[np.int64]) -> float:
        """The log-potential of a joint state (n,)."""
        theta = _of_one(self.kind, self.shape, self.numbers)
        return float(self.kind.score(self.shape, torch.from_numpy(np.asarray(x))[None], theta))

    def as_table(self) -> NDArray[np.float64]:
        """The log-potentials (k_1, ..., k_n)."""
        return self.kind.as_table(self.shape, self.numbers)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, StructuredFactor)
            and (self.kind, self.scope) == (other.kind, other.scope)
            and all(np.array_equal(v, other.numbers[name]) for name, v in self.numbers.items())
        )


@dataclass(frozen=True, eq=False)
class StructuredGroup:
    """Factors of a model with equal kinds and cardinalities: those added by one call, or all of them."""

    kind: Kind
    shape: Shape
    scopes: NDArray[np.int64]  # shape: (C, n)
    numbers: Mapping[str, Array]  # shape: (C, ...) each
    index: NDArray[np.int64]  # shape: (C,), the factor's insertion order

    def some(self, rows: slice) -> Self:
        """A view of some of the factors."""
        numbers = {name: v[rows] for name, v in self.numbers.items()}
        return type(self)(self.kind, self.shape, self.scopes[rows], numbers, self.index[rows])

    def factors(self) -> list[StructuredFactor]:
        """One by one."""
        return [
            StructuredFactor(self.kind, tuple(scope), self.shape, {name: v[c] for name, v in self.numbers.items()})
            for c, scope in enumerate(self.scopes.tolist())
        ]


def checked_numbers(kind: Kind, count: int, numbers: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """The numbers of ``count`` factors as arrays of the types that the kind declares."""
    if set(numbers) != set(kind.numbers):
        wanted, got = (", ".join(names) or "none" for names in (kind.numbers, numbers))
        raise ValueError(f"Expected the numbers {wanted} of {kind.name} factors (got {got})")
    arrays: dict[str, Array] = {}
    for name, number in kind.numbers.items():
        what = f"{name} of a {kind.name} factor"
        arrays[name] = integers(numbers[name], what).copy() if number is int else log_potentials(numbers[name], what)
        if not arrays[name].ndim or len(arrays[name]) != count:
            raise ValueError(f"Expected {name} of {count} {kind.name} factors (got shape {arrays[name].shape})")
    return arrays


def _of_one(kind: Kind, shape: Shape, numbers: Mapping[str, Array]) -> Tensor:
    """The potentials of a single factor.  # shape: (1, S)"""
    tensors = {name: torch.as_tensor(np.asarray(v))[None, None] for name, v in numbers.items()}
    return kind.potentials(shape, tensors)[0].double()


def as_tuples(value: Any) -> Any:
    """Nested lists as nested tuples, which can be compared and hashed."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value
