"""Aggregate messages over the edges of each destination, block by block of similar degree."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fgnn.graph import Block, Incidence, Side
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.torch.chunks import cut, limit

# Sums of more terms than this, one after the other, lose too many digits in float32.
_MOST_TERMS = 256


def reduce_edges(
    messages: Tensor,  # shape: (E, ...)
    incidence: Incidence,
    towards: Side,
    aggregation: Aggregation,
    *,
    arg: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Aggregate messages by destination; a mean is returned as its sum.

    Destinations without edges get the identity element. With ``arg``, also return the edge of the first maximum, or -1.

    Returns:
        values (D, ...) and, for max with ``arg``, edges (D, ...), else None.
    """
    rest = messages.shape[1:]
    count = incidence.num_destinations(towards)
    if (
        aggregation.kind in ("sum", "mean")
        and messages.is_cpu
        and sum_dtype(messages, incidence, towards) == messages.dtype
    ):
        return add_rows(messages.new_zeros((count, *rest)), incidence.destination(towards), messages), None
    blocks = incidence.blocks(towards)
    if len(blocks) == 1 and blocks[0].destinations is None:
        return reduce_block(messages, blocks[0], aggregation, arg)
    values = messages.new_full((count, *rest), aggregation.neutral)
    edges = messages.new_full((count, *rest), -1, dtype=torch.long) if arg and aggregation.kind == "max" else None
    for block in blocks:
        assert block.destinations is not None  # unless a single block covers all
        reduced, winner = reduce_block(messages, block, aggregation, arg)
        values.index_copy_(0, block.destinations, reduced)
        if edges is not None and winner is not None:
            edges.index_copy_(0, block.destinations, winner)
    return values, edges


def sum_dtype(like: Tensor, incidence: Incidence, towards: Side) -> torch.dtype:
    """The dtype in which to add up rows at each destination, one after the other."""
    many = incidence.largest_degree(towards) > _MOST_TERMS
    return torch.promote_types(like.dtype, torch.float64 if many else torch.float32)


def add_rows(total: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Add each row to the row of ``total`` that ``index`` names, in a fixed order on every device."""
    if total.is_cpu:
        return total.index_add_(0, index, rows)
    return total.index_put_((index,), rows, accumulate=True)


def reduce_block(messages: Tensor, block: Block, aggregation: Aggregation, arg: bool) -> tuple[Tensor, Tensor | None]:
    """Aggregate the messages of a block; see :func:`reduce_edges`."""
    if aggregation.kind == "max" and messages.is_cpu and block.edges is not None and not messages.requires_grad:
        return _max_by_chunks(messages, block, arg)
    shape = (block.rows, block.width, *messages.shape[1:])
    rows = messages if block.edges is None else messages.index_select(0, block.edges.reshape(-1))
    rows = rows.reshape(shape)  # shape: (R, K, ...)
    if aggregation.kind == "max":
        # Padding repeats a row's last edge, so it changes neither the maximum nor which edge is first.
        if not arg:
            return rows.amax(1), None
        values, place = first_max(rows)
        if block.edges is None:
            first = torch.arange(block.rows, device=rows.device) * block.width
            return values, place + first.view(-1, *(1,) * (place.dim() - 1))
        return values, block.edges.gather(1, place.flatten(1)).view_as(place)
    if block.padding is not None:
        mask = block.padding.view(block.rows, block.width, *(1,) * (rows.dim() - 2))
        rows = rows.masked_fill(mask, aggregation.neutral)
    if aggregation.kind == "softmax":
        gamma = aggregation.gamma
        return (rows * gamma).logsumexp(1) / gamma, None
    return rows.sum(1), None


def _max_by_chunks(messages: Tensor, block: Block, arg: bool) -> tuple[Tensor, Tensor | None]:
    """Gather and compare as many rows at a time as fit the cache."""
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
        edges[part] = at.gather(1, place.flatten(1)).view_as(place)
    return values, edges


def first_max(rows: Tensor, *, spend: bool = False) -> tuple[Tensor, Tensor]:
    """The maximum over axis 1 and the first place that attains it; with ``spend``, overwrite ``rows``."""
    width = rows.shape[1]
    if rows.is_cpu and not rows.requires_grad and 1 < width < 256:
        # torch's max with indices is scalar code on the CPU; this is vectorised and several times faster.
        values = rows.amax(1)
        back = torch.arange(width, 0, -1, dtype=rows.dtype, device=rows.device).view(1, -1, *(1,) * (rows.dim() - 2))
        # Comparing in place gives 1 and 0 in the rows' own dtype, the only vectorised form.
        last = (rows if spend else rows.clone()).eq_(values.unsqueeze(1)).mul_(back).amax(1)
        return values, (width - last.long()).clamp_max_(width - 1)  # NaN equals nothing
    largest = rows.max(1)
    return largest.values, largest.indices
