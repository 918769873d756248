"""How the messages that reach a node become one vector, within a group and over several."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Kind = Literal["max", "sum", "mean", "softmax"]
_KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Aggregation:
    r"""Aggregate messages :math:`m_e` entry by entry.

    ``max``: :math:`\max_e m_e`, with the gradient to the first maximum in edge order; ``sum``; ``mean``;
    ``softmax``: :math:`\frac1\gamma \log \sum_e e^{\gamma m_e}`, which approaches max as γ grows.
    """

    kind: Kind = "max"
    gamma: float = 3.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"Expected an aggregation among {list(_KINDS)} (got {self.kind!r})")
        if not 1e-6 <= self.gamma <= 1e6:  # beyond, γm and its exponential leave the range of float32
            raise ValueError(f"Expected gamma between 1e-6 and 1e6 (got {self.gamma})")

    @classmethod
    def parse(cls, given: str | Aggregation) -> Aggregation:
        """Read ``"max"``, ``"sum"``, ``"mean"``, ``"softmax"`` or ``"softmax(5)"``."""
        if isinstance(given, Aggregation):
            return given
        softmax = re.fullmatch(r"softmax\(\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*\)", str(given))
        if softmax:
            return cls("softmax", float(softmax[1]))
        return cls(given)  # type: ignore[arg-type]

    @property
    def neutral(self) -> float:
        """Identity element of the aggregation."""
        return -math.inf if self.kind in ("max", "softmax") else 0.0

    def __str__(self) -> str:
        return f"softmax({self.gamma:g})" if self.kind == "softmax" else self.kind


def combine_groups(parts: Sequence[Tensor], aggregation: Aggregation) -> Tensor:
    """Aggregate the aggregates of several groups; on a tie the earlier group wins."""
    total = parts[0]
    for part in parts[1:]:
        if aggregation.kind == "max":
            total = torch.where((part > total) | part.isnan(), part, total)  # NaN propagates
        elif aggregation.kind == "softmax":
            total = _soft_union(total, part, aggregation.gamma)
        else:
            total = total + part
    return total


def _soft_union(x: Tensor, y: Tensor, gamma: float) -> Tensor:
    """log(exp(γx) + exp(γy)) / γ, where either or both may be -inf."""
    no_x, no_y = torch.isneginf(x), torch.isneginf(y)
    # The second derivative of logaddexp at -inf would be NaN.
    one = no_x | no_y
    union = torch.logaddexp(x.masked_fill(one, 0.0) * gamma, y.masked_fill(one, 0.0) * gamma) / gamma
    return torch.where(no_y, x, torch.where(no_x, y, union))


def finish(total: Tensor, degree: Tensor | None, empty: Tensor | None, aggregation: Aggregation) -> Tensor:
    """Divide a mean by the number of edges, and set destinations without edges to zero.

    Args:
        total: (..., D, m).
        degree: (D,) number of edges over all groups; only needed for a mean.
        empty: (D,) True for destinations without edges; None if there are none.
    """
    if aggregation.kind == "mean":
        assert degree is not None
        total = total / degree.clamp_min(1).to(total.dtype).unsqueeze(-1)
    if empty is not None:
        total = total.masked_fill(empty.unsqueeze(-1), 0.0)
    return total
