"""The multipliers of AD3 as those of `dual`: sweeps can stall above the optimum of the relaxation, AD3 does not."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.ad3.kinds import asked
from fgnn.infer.ad3.layout import Layout as AD3Layout
from fgnn.infer.ad3.layout import build_layout, edge_width
from fgnn.infer.ad3.numbers import build_numbers
from fgnn.infer.ad3.relax import Limits, relax
from fgnn.infer.dual.layout import Layout
from fgnn.pgm import ModelBatch

_ITERATIONS, _TOLERANCE = 3000, 1e-4


def ad3_multipliers(model: ModelBatch, layout: Layout, deadline: float) -> NDArray[np.float64] | None:
    """δ of one model from its relaxation, shape (deltas,); None for models that AD3 cannot read as they are.

    ``deadline`` is by `time.perf_counter`.
    """
    if model.unary.shape[2] < 2:
        return None
    keep = asked(model, deadline - time.perf_counter())
    if not all(keep(f.kind, f.shape) for f in model.structured):
        return None
    theirs = build_layout(model)
    numbers = build_numbers(model, theirs)
    limits = Limits(_ITERATIONS, _TOLERANCE, 0.0, time.monotonic() + deadline - time.perf_counter())
    relaxed = relax(theirs, numbers, torch.float32, limits)
    scaled = (relaxed.multipliers * numbers.scale)[:, 0].numpy()
    return _converted(model, theirs, layout, scaled)


def _converted(
    model: ModelBatch, theirs: AD3Layout, layout: Layout, multipliers: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One number for a binary variable becomes (0, λ), the others stay vectors."""
    delta = np.zeros(layout.num_deltas)
    begin = np.cumsum([0, *(f.scopes.numel() for f in model.factors)])  # the first edge of each group

    def put(edges: NDArray[np.int64], numbers: NDArray[np.float64], states: int) -> None:
        if states == 2:
            delta[layout.delta[edges] + 1] = numbers
        elif states > 2:
            delta[layout.delta[edges][:, None] + np.arange(states)] = numbers.reshape(len(edges), states)

    for pair in theirs.pairs:
        count = len(model.tables[pair.group].scopes)
        axes = [a for a, k in enumerate(model.tables[pair.group].shape) if k > 1]
        for axis, rows in zip(axes, (pair.first, pair.second), strict=True):
            put(begin[pair.group] + axis * count + pair.tables.numpy(), multipliers[rows], 2)
    for table in theirs.tables:
        count = len(model.tables[table.group].scopes)
        axes = [a for a, k in enumerate(model.tables[table.group].shape) if k > 1]
        for axis, rows, k in zip(axes, table.axes, table.shape, strict=True):
            put(begin[table.group] + axis * count + table.tables.numpy(), multipliers[rows], k)
    for ones in theirs.counts:
        put(begin[ones.group] + np.arange(ones.edges.stop - ones.edges.start), multipliers[ones.edges], 2)
    for f in theirs.kinds:
        at = f.edges.start
        for axis, k in enumerate(f.shape):
            end = at + f.count * edge_width(k)
            put(begin[f.group] + axis + len(f.shape) * np.arange(f.count), multipliers[at:end], k)
            at = end
    return delta
