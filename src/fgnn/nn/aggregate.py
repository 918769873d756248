"""Aggregation over the edges of a destination, and over several groups."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fgnn.graph import Block, Incidence, Side
from fgnn.nn.backends.torch.chunks import cut, limit

Kind = Literal["max", "sum", "mean", "softmax"]
_KINDS: tuple[Kind, ...] = ("max", "sum", "mean", "softmax")


@dataclass(frozen=True)
class Aggregation:
    r"""How messages :math:`m_e` that reach one node become one vector, entry by entry.

    ``max``: :math:`\max_e m_e`, the gradient to the first maximum in edge order; ``sum``; ``mean``;
    ``softmax``: :math:`\frac1\gamma \log \sum_e e^{\gamma m_e}`, which nears max as γ grows.
    """

    kind: Kind = "max"
    gamma: float = 3.0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"Expected an aggregation among {list(_KINDS)} (got {self.kind!r})")
        if not self.gamma > 0:
            raise ValueError(f"Expected gamma > 0 (got {self.gamma})")

    @classmethod
    def parse(cls, given: str | Aggregation) -> Aggregation:
        """Read ``"max"``, ``"sum"``, ``"mean"``, ``"softmax"`` or ``"softmax(5)"``."""
        if isinstance(given, Aggregation):
            return given
        found = re.fullmatch(r"softmax\(\s*([0-9.eE+-]+)\s*\)", given)
        if found:
            return cls("softmax", float(found[1]))
        return cls(given)  # type: ignore[arg-type]

    @property
    def neutral(self) -> float:
        """What no message at all amounts to before it is replaced by zero."""
        return -math.inf if self.kind in ("max", "softmax") else 0.0

    def __str__(self) -> str:
        return f"softmax({self.gamma:g})" if self.kind == "softmax" else self.kind


def reduce_edges(
    messages: Tensor,  # shape: (E, ...)
    incidence: Incidence,
    towards: Side,
    aggregation: Aggregation,
    *,
    arg: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Aggregate messages by destination; a mean is left as its sum.

    Destinations without edges get the neutral element. With ``arg``, also the edge of the first maximum, -1 for none.

    Returns:
        values (D, ...) and, for max with ``arg``, edges (D, ...), else None.
    """
    rest = messages.shape[1:]
    count = incidence.num_destinations(towards)
    blocks = incidence.blocks(towards)
    if len(blocks) == 1 and blocks[0].destinations is None:
        return _reduce_block(messages, blocks[0], aggregation, arg)
    values = messages.new_full((count, *rest), aggregation.neutral)
    edges = messages.new_full((count, *rest), -1, dtype=torch.long) if arg and aggregation.kind == "max" else None
    for block in blocks:
        found, winner = _reduce_block(messages, block, aggregation, arg)
        values.index_copy_(0, block.destinations, found)  # type: ignore[arg-type]
        if edges is not None and winner is not None:
            edges.index_copy_(0, block.destinations, winner)  # type: ignore[arg-type]
    return values, edges


def _reduce_block(messages: Tensor, block: Block, aggregation: Aggregation, arg: bool) -> tuple[Tensor, Tensor | None]:
    if aggregation.kind == "max" and messages.is_cpu and block.edges is not None and not messages.requires_grad:
        return _max_by_chunks(messages, block, arg)
    shape = (block.rows, block.width, *messages.shape[1:])
    rows = messages if block.edges is None else messages.index_select(0, block.edges.reshape(-1))
    rows = rows.reshape(shape)  # shape: (R, K, ...)
    if aggregation.kind == "max":
        # padding repeats a row's last edge, so it changes neither the maximum nor which edge is first
        if not arg:
            return rows.amax(1), None
        values, place = first_max(rows)
        if block.edges is None:
            first = torch.arange(block.rows, device=rows.device) * block.width
            return values, place + first.view(-1, *(1,) * (place.dim() - 1))
        return values, _edge_at(block.edges, place)
    if block.padding is not None:
        mask = block.padding.view(block.rows, block.width, *(1,) * (rows.dim() - 2))
        rows = rows.masked_fill(mask, aggregation.neutral)
    if aggregation.kind == "softmax":
        gamma = aggregation.gamma
        return (rows * gamma).logsumexp(1) / gamma, None
    return rows.sum(1), None


def _max_by_chunks(messages: Tensor, block: Block, arg: bool) -> tuple[Tensor, Tensor | None]:
    """As many rows at a time as the cache holds: what is gathered is compared there, and never written to memory."""
    assert block.edges is not None
    rest = messages.shape[1:]
    values = messages.new_empty((block.rows, *rest))
    edges = messages.new_empty(values.shape, dtype=torch.long) if arg else None
    for part in cut(block.rows, limit(messages.device) // max(block.width * math.prod(rest), 1)):
        at = block.edges[part]
        rows = messages.index_select(0, at.reshape(-1)).view(*at.shape, *rest)
        if edges is None:
            values[part] = rows.amax(1)
            continue
        values[part], place = first_max(rows, spend=True)
        edges[part] = _edge_at(at, place)
    return values, edges


def _edge_at(edges: Tensor, place: Tensor) -> Tensor:
    """The edge at a place of each row of (R, K).  # shape: (R, ...)"""
    return edges.gather(1, place.flatten(1)).view_as(place)


def first_max(rows: Tensor, *, spend: bool = False) -> tuple[Tensor, Tensor]:
    """The maximum over axis 1 and the first place that attains it; with ``spend`` rows may be written over."""
    width = rows.shape[1]
    if rows.is_cpu and not rows.requires_grad and 1 < width < 256:
        # torch's max with indices is scalar code on a CPU; this is vectorised, and several times faster
        values = rows.amax(1)
        back = torch.arange(width, 0, -1, dtype=rows.dtype).view(1, -1, *(1,) * (rows.dim() - 2))
        # comparing in place gives 1 and 0 in the rows' own type, which alone is vectorised
        last = (rows if spend else rows.clone()).eq_(values.unsqueeze(1)).mul_(back).amax(1)
        return values, (width - last.long()).clamp_max_(width - 1)  # a NaN equals nothing
    found = rows.max(1)
    return found.values, found.indices


def combine_groups(parts: Sequence[Tensor], aggregation: Aggregation) -> Tensor:
    """Aggregate over the union of groups what was aggregated in each; on a tie the earlier group wins."""
    total = parts[0]
    for part in parts[1:]:
        if aggregation.kind == "max":
            total = torch.where((part > total) | part.isnan(), part, total)  # a NaN is not to be lost on the way
        elif aggregation.kind == "softmax":
            total = _soft_union(total, part, aggregation.gamma)
        else:
            total = total + part
    return total


def _soft_union(x: Tensor, y: Tensor, gamma: float) -> Tensor:
    """log(exp(γx) + exp(γy)) / γ, where either or both may be -inf for "no message"."""
    both = torch.isneginf(x) & torch.isneginf(y)
    filled = torch.logaddexp(x.masked_fill(both, 0.0) * gamma, y.masked_fill(both, 0.0) * gamma) / gamma
    return filled.masked_fill(both, -math.inf)


def finish(total: Tensor, degree: Tensor | None, empty: Tensor | None, aggregation: Aggregation) -> Tensor:
    """Divide a mean by the number of edges, and give zeros to those without any.

    Args:
        total: (..., D, m).
        degree: (D,) edges over all groups; read for a mean.
        empty: (D,) True where there is none; None where each has one.
    """
    if aggregation.kind == "mean":
        assert degree is not None
        total = total / degree.clamp_min(1).to(total.dtype).unsqueeze(-1)
    if empty is not None:
        total = total.masked_fill(empty.unsqueeze(-1), 0.0)
    return total
