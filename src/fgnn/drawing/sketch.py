"""What a drawing shows: variables and factors without coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Larger drawings are unreadable, and their layout takes seconds.
MAX_NODES = 1000
# A notebook shows what is this small without being asked.
INLINE_NODES = 150

TABLE_COLOUR, CONSTRAINT_COLOUR, BROKEN_COLOUR = "#7a828c", "#d9b310", "#d03434"
STATE_COLOURS = ("#f2f2f2", "#2f6fb0", "#d9772b", "#4c9a4c", "#a94f9d", "#b8a13a", "#5aa9a5", "#8c5a3c")
GROUP_COLOURS = (TABLE_COLOUR, CONSTRAINT_COLOUR, "#4c9a4c", "#a94f9d", "#d9772b", "#5aa9a5", "#8c5a3c", "#5a6fd0")


@dataclass(frozen=True, eq=False)
class States:
    """The states to colour variables by: one per variable, or the probability of each."""

    assignment: NDArray[np.int64] | None = None  # shape: (N,)
    probabilities: Sequence[NDArray[np.float64]] | None = None  # shape: (k_i,) each

    @classmethod
    def of(cls, answer: Any) -> States:
        """Read a solution, marginals, or a sequence of states."""
        if answer is None or isinstance(answer, States):
            return answer or cls()
        if hasattr(answer, "variables"):
            return cls(probabilities=[np.asarray(p, np.float64) for p in answer.variables])
        states = np.asarray(getattr(answer, "assignment", answer))
        if states.ndim != 1 or not (states.size == 0 or np.issubdtype(states.dtype, np.integer)):
            raise ValueError(f"Expected one state per variable (got {states.dtype} of shape {states.shape})")
        return cls(assignment=states.astype(np.int64))

    @property
    def given(self) -> bool:
        """Whether there is anything to colour by."""
        return self.assignment is not None or self.probabilities is not None

    def check(self, cardinalities: Sequence[int] | NDArray[np.int64] | None, count: int) -> None:
        """Raise a `ValueError` unless they fit ``count`` variables of these cardinalities (None: any)."""
        for values in (self.assignment, self.probabilities):
            if values is not None and len(values) != count:
                raise ValueError(f"Expected states of {count} variables (got {len(values)})")
        if self.assignment is None or not count:
            return
        top = np.full(count, np.iinfo(np.int64).max) if cardinalities is None else np.asarray(cardinalities)
        wrong = np.flatnonzero((self.assignment < 0) | (self.assignment >= top))
        if wrong.size:
            i = int(wrong[0])
            raise ValueError(f"Expected a state below {top[i]} for variable {i} (got {self.assignment[i]})")


@dataclass(frozen=True)
class FactorMark:
    """A factor: its variables, the legend's name for its kind, and the text in and behind its square."""

    scope: tuple[int, ...]
    kind: str = "table"
    colour: str = TABLE_COLOUR
    label: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Sketch:
    """Variables, factors and optional states.

    Args:
        num_variables: How many circles there are, numbered from 0.
        factors: The squares.
        states: What colours the circles.
        details: What hovering over each variable shows.
    """

    num_variables: int
    factors: tuple[FactorMark, ...]
    states: States = States()
    details: tuple[str, ...] = ()

    @property
    def scopes(self) -> list[tuple[int, ...]]:
        return [factor.scope for factor in self.factors]


class Drawable(Protocol):
    """What `draw` accepts."""

    def _sketch_(self, states: States) -> Sketch: ...


def check_nodes(count: int, what: str = "variables and factors") -> None:
    """Raise a `ValueError` if a drawing of so many nodes would be unreadable."""
    if count > MAX_NODES:
        raise ValueError(f"Expected at most {MAX_NODES:,} {what} to draw (got {count:,})")
