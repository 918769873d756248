"""Answers about p(x) = exp(θ(x)) / Z: marginals and log Z, for one model and for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.per_model import cat_rows, count_statuses, fill_rows
from fgnn.infer.solution_html import marginals_html
from fgnn.pgm import ModelBatch

Status = Literal["exact", "approximate", "infeasible", "time-limit"]


@dataclass(frozen=True, eq=False)
class Beliefs:
    """What a method returns; tensors have a row per model.

    ``exact`` means that ``unary``, ``tables`` and ``log_z`` are right up to rounding. A ``log_z`` or ``bound`` of -inf
    says that a model has no feasible assignment; its probabilities mean nothing. A ``log_z`` of NaN is no answer.
    """

    unary: Tensor  # shape: (B, N, K), probabilities; 0 in padded states
    log_z: Tensor  # shape: (B,), float64
    bound: Tensor  # shape: (B,), float64, an upper bound on log Z; +inf: none
    exact: Tensor  # shape: (B,), bool
    converged: Tensor  # shape: (B,), bool
    iterations: Tensor  # shape: (B,), int64
    timed_out: Tensor  # shape: (B,), bool
    tables: tuple[Tensor, ...] | None = None  # shape: (B, C, k_1, ..., k_A) by group of tables
    structured: tuple[Tensor, ...] | None = None  # shape: (B, C, S) by group: the probability of each log-potential
    method: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, unary: Tensor, log_z: Tensor, **values: Any) -> Beliefs:
        """Create beliefs from tensors, or numbers that hold for all models.

        By default approximate, without a bound, converged, in time, after 0 iterations.
        """
        defaults = {"bound": torch.inf, "exact": False, "converged": True, "iterations": 0, "timed_out": False}
        return cls(unary=unary, log_z=log_z, **fill_rows(values, defaults, log_z))

    @classmethod
    def join(cls, parts: Sequence[Beliefs]) -> Beliefs:
        """Concatenate the answers for consecutive parts of a batch."""
        first = parts[0]
        return cls(
            **cat_rows(parts),
            tables=_joined([part.tables for part in parts]),
            structured=_joined([part.structured for part in parts]),
            method=first.method,
            info=first.info,
        )


def _joined(parts: Sequence[tuple[Tensor, ...] | None]) -> tuple[Tensor, ...] | None:
    """The groups of consecutive parts of a batch; None if a part has none."""
    given = [part for part in parts if part is not None]
    return tuple(map(torch.cat, zip(*given, strict=True))) if len(given) == len(parts) else None


@dataclass(frozen=True, eq=False)
class Marginals:
    """The answer for one model.

    ``status`` is ``exact`` (up to rounding), ``approximate``, ``infeasible`` (no assignment has a positive probability:
    ``log_partition`` is ``-inf`` and the marginals are NaN) or ``time-limit`` (both are NaN where nothing was found in
    time). ``tables`` follow the order in which the tables were added, and are None unless asked for.
    """

    variables: list[NDArray[np.float64]]  # p(x_i), shape: (k_i,) each
    tables: list[NDArray[np.float64]] | None  # p(x_c), shape: (k_1, ..., k_A) each
    log_partition: float
    bound: float
    status: Status
    converged: bool
    iterations: int
    seconds: float
    method: str
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def exact(self) -> bool:
        """Whether the answer is right up to rounding."""
        return self.status in ("exact", "infeasible")

    def _repr_html_(self) -> str:
        return marginals_html(self)


@dataclass(frozen=True, eq=False)
class MarginalsBatch:
    """The answers for a batch, with the fields of `Marginals`; ``batch[b]`` is the `Marginals` of model b.

    ``seconds`` is the time of the whole batch.
    """

    variables: list[Tensor]  # p(x_i), shape: (B, k_i) each
    tables: list[Tensor] | None  # p(x_c), shape: (B, C, k_1, ..., k_A) by group of tables
    log_partition: Tensor  # shape: (B,), float64
    bound: Tensor  # shape: (B,), float64
    status: list[Status]
    converged: Tensor  # shape: (B,), bool
    iterations: Tensor  # shape: (B,), int64
    seconds: float
    method: str
    order: Sequence[NDArray[np.int64]] = field(repr=False)  # by group, the insertion order of its tables
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def exact(self) -> Tensor:
        """Whether each answer is right up to rounding.  # shape: (B,), bool"""
        return torch.tensor([s in ("exact", "infeasible") for s in self.status])

    def __len__(self) -> int:
        return int(self.log_partition.shape[0])

    def __getitem__(self, b: int) -> Marginals:
        tables = None
        if self.tables is not None:
            numbered = [
                (int(at), p[b, c].cpu().numpy())
                for group, p in zip(self.order, self.tables, strict=True)
                for c, at in enumerate(group)
            ]
            tables = [p for _, p in sorted(numbered, key=lambda pair: pair[0])]
        return Marginals(
            variables=[p[b].cpu().numpy() for p in self.variables],
            tables=tables,
            log_partition=float(self.log_partition[b]),
            bound=float(self.bound[b]),
            status=self.status[b],
            converged=bool(self.converged[b]),
            iterations=int(self.iterations[b]),
            seconds=self.seconds,
            method=self.method,
            info=self.info,
        )

    def __repr__(self) -> str:
        counts = count_statuses(self.status)
        return f"MarginalsBatch({len(self)} models by {self.method}: {counts}; {self.seconds:.3g} s)"


@dataclass(frozen=True, eq=False)
class LogPartition:
    """log Z of one model (numbers) or of a batch (tensors of shape (B,)).

    ``value`` of a batch has gradients where its potentials require them; the gradient is the marginals.
    """

    value: Any
    bound: Any  # an upper bound, +inf: none
    exact: Any
    seconds: float
    method: str


def conclude(batch: ModelBatch, beliefs: Beliefs, seconds: float, order: Sequence[NDArray[np.int64]]) -> MarginalsBatch:
    """Set the status of every model, and cut the padding off."""
    impossible = beliefs.log_z == -torch.inf
    code = torch.where(beliefs.exact, 0, 1)
    code = torch.where(beliefs.timed_out, 3, code)
    code = torch.where(impossible, 2, code)
    names: tuple[Status, ...] = ("exact", "approximate", "infeasible", "time-limit")
    without = impossible | beliefs.log_z.isnan()  # no distribution, or none found in time
    unary = beliefs.unary.masked_fill(without[:, None, None], torch.nan)
    tables = None
    if beliefs.tables is not None:
        tables = [t.masked_fill(without.view(-1, *(1 for _ in t.shape[1:])), torch.nan) for t in beliefs.tables]
    return MarginalsBatch(
        variables=[unary[:, i, :k] for i, k in enumerate(batch.cardinalities.tolist())],
        tables=tables,
        log_partition=beliefs.log_z,
        bound=torch.where(beliefs.exact, beliefs.log_z, beliefs.bound),
        status=[names[c] for c in code.tolist()],
        converged=beliefs.converged,
        iterations=beliefs.iterations,
        seconds=seconds,
        method=beliefs.method,
        order=order,
        info=beliefs.info,
    )
