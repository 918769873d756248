"""Answers of solvers, for one model and for a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.drawing import Sketch, States
from fgnn.infer.per_model import cat_rows, count_statuses, fill_rows
from fgnn.infer.solution_html import batch_html, solution_html
from fgnn.pgm import GraphicalModel, ModelBatch

Status = Literal["optimal", "feasible", "infeasible", "time-limit"]


@dataclass(frozen=True)
class Progress:
    """Progress of a long solve; ``score`` and ``bound`` are the best so far (``∓inf``: none yet).

    A solver that includes its best ``assignment`` lets an interrupted `solve` return it.
    """

    method: str
    seconds: float
    score: float
    bound: float
    note: str = ""
    assignment: Tensor | None = None  # shape: (B, N), int64


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Answer:
    """A solver's result, before `solve` scores it; tensors have a row per model.

    ``bound`` is an upper bound on the optimum: ``+inf`` if the method has none, ``-inf`` if no assignment is feasible.
    `certificate` derives ``gap`` and ``proved`` from it and sets ``certified``; what a solver says about them does not
    count.
    """

    assignment: Tensor  # shape: (B, N), int64
    bound: Tensor  # shape: (B,), float64
    gap: Tensor  # shape: (B,), float64: no assignment is better by more
    proved: Tensor  # shape: (B,), bool: optimal, or, if the assignment scores -inf, no other is feasible
    converged: Tensor  # shape: (B,), bool
    iterations: Tensor  # shape: (B,), int64
    timed_out: Tensor  # shape: (B,), bool
    method: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    certified: bool = False

    @classmethod
    def of(cls, assignment: Tensor, **values: Any) -> Answer:
        """Create an answer from tensors, or numbers that hold for all models.

        By default it has no bound, has converged, in time, after 0 iterations.
        """
        defaults = {"bound": torch.inf, "gap": torch.inf, "proved": False}
        defaults |= {"converged": True, "iterations": 0, "timed_out": False}
        return cls(assignment=assignment, **fill_rows(values, defaults, assignment))

    @classmethod
    def join(cls, parts: Sequence[Answer]) -> Answer:
        """Concatenate the answers for consecutive parts of a batch."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            **cat_rows(parts),
            method="+".join(dict.fromkeys(part.method for part in parts)),
            info={key: _join_info([part.info.get(key) for part in parts], parts) for key in parts[0].info},
            certified=all(part.certified for part in parts),
        )


def _join_info(values: list[Any], parts: Sequence[Answer]) -> Any:
    """Concatenate tensors with a row per model; collapse equal values to one and list others by part."""
    if all(isinstance(v, Tensor) and v.dim() and len(v) == len(p.bound) for v, p in zip(values, parts, strict=True)):
        if values[0].dim() == 2:  # columns are iterations, of which parts may need different numbers
            most = max(v.shape[1] for v in values)
            values = [torch.nn.functional.pad(v, (0, most - v.shape[1])) for v in values]
        return torch.cat(values)
    return values[0] if all(type(v) is type(values[0]) and v == values[0] for v in values) else values


@dataclass(frozen=True, eq=False)
class Solution:
    """The answer for one model.

    ``status`` is ``optimal`` (proved), ``feasible`` (a feasible assignment, not proved optimal), ``time-limit`` (the
    limit was reached first; see ``feasible``) or ``infeasible`` (the assignment breaks a constraint; if ``bound`` is
    ``-inf``, every assignment provably does). ``bound`` is an upper bound on the best score, ``inf`` if the method has
    none. No assignment is better by more than ``gap``, computed with rigorous bounds on all rounding errors; it is more
    precise than the difference of ``bound`` and ``score``, which are rounded to their own size. ``model`` is a copy of
    the model, so that the solution can be drawn; None for a model of a batch.
    """

    assignment: NDArray[np.int64]  # shape: (N,)
    score: float
    bound: float
    gap: float
    status: Status
    feasible: bool
    converged: bool
    iterations: int
    seconds: float
    method: str
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)
    model: GraphicalModel | None = field(default=None, repr=False)

    def _sketch_(self, states: States) -> Sketch:
        if self.model is None:
            raise ValueError("Expected a solution that knows its model (got one of a batch): use draw(model, solution)")
        return self.model._sketch_(states if states.given else States.of(self))

    def _repr_html_(self) -> str:
        return solution_html(self)


@dataclass(frozen=True, eq=False)
class SolutionBatch:
    """The answers for a batch, with the fields of `Solution`; ``solutions[b]`` is the `Solution` of model b.

    ``seconds`` is the time of the whole batch.
    """

    assignment: Tensor  # shape: (B, N), int64
    score: Tensor  # shape: (B,), float64
    bound: Tensor  # shape: (B,), float64
    gap: Tensor  # shape: (B,), float64
    status: list[Status]
    feasible: Tensor  # shape: (B,), bool
    converged: Tensor  # shape: (B,), bool
    iterations: Tensor  # shape: (B,), int64
    seconds: float
    method: str
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return int(self.assignment.shape[0])

    def __getitem__(self, b: int) -> Solution:
        return Solution(
            assignment=self.assignment[b].cpu().numpy(),
            score=float(self.score[b]),
            bound=float(self.bound[b]),
            gap=float(self.gap[b]),
            status=self.status[b],
            feasible=bool(self.feasible[b]),
            converged=bool(self.converged[b]),
            iterations=int(self.iterations[b]),
            seconds=self.seconds,
            method=self.method,
            info=self.info,
        )

    def _repr_html_(self) -> str:
        return batch_html(self)

    def __repr__(self) -> str:
        return (
            f"SolutionBatch({len(self)} models by {self.method}: {count_statuses(self.status)}; {self.seconds:.3g} s)"
        )


def conclude(batch: ModelBatch, answer: Answer, seconds: float) -> SolutionBatch:
    """Score a certified answer in float64 and set its status; a solver's own scores are not trusted."""
    score = batch.score(answer.assignment)
    feasible = score > -torch.inf
    bound = torch.where(feasible, sum_rounded_up(score, answer.gap), answer.bound)  # the gap is the more precise
    code = torch.where(feasible, 1, 2)
    code = torch.where(answer.timed_out, 3, code)
    code = torch.where(answer.proved, torch.where(feasible, 0, 2), code)
    names: tuple[Status, ...] = ("optimal", "feasible", "infeasible", "time-limit")
    return SolutionBatch(
        assignment=answer.assignment,
        score=score,
        bound=bound,
        gap=answer.gap.to(score),
        status=[names[c] for c in code.tolist()],
        feasible=feasible,
        converged=answer.converged,
        iterations=answer.iterations,
        seconds=seconds,
        method=answer.method,
        info=answer.info,
    )


def sum_rounded_up(a: Tensor, b: Tensor) -> Tensor:
    """The smallest float64 that is at least a + b."""
    total = a + b
    c = total - a
    error = (a - (total - c)) + (b - c)  # of the rounding, exactly; NaN if b is infinite
    return torch.where(error > 0, torch.nextafter(total, torch.full_like(total, torch.inf)), total)
