"""Log-sum-exp steps of one model over full tables, by compiled loops where numba is installed.

They work on probabilities scaled to a largest value of one, which costs no exponential per joint state. A step whose
sums could underflow is refused and left to the log domain.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.exact.candidates import Candidates
from fgnn.infer.exact.shapes import DenseShape

Result = TypeVar("Result")

# Below this many joint states a few tensor operations are as fast.
_FEW_STATES = 1 << 11
# From this many on, threads share the rows.
_MANY_STATES = 1 << 18
# Entries this small compared with the largest of their table may be lost in a product.
_SMALL = 1e-200
_FACTORS = 3  # that a loop takes; further ones are multiplied beforehand


@cache
def has_numba() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


def log_sum_dense(candidates: Candidates, shape: DenseShape) -> Tensor | None:
    """The result of a step, (rows,); None if it must be computed otherwise."""
    factors = _factors(candidates, shape)
    if factors is None:
        return None
    from fgnn.infer.exact.dense_kernels import sum_rows

    out = torch.empty(shape.rows, dtype=torch.float64)
    whole = out.numpy()
    a, b, c = factors.tables
    parts = _parts(shape, factors)

    def work(part: slice) -> bool:
        return bool(sum_rows(a, b, c, factors.cards, factors.strides, part.start, whole[part]))

    return None if any(_each(work, parts)) else out.log_().add_(factors.scale)


def shares_dense(candidates: Candidates, shape: DenseShape, adjoint: Tensor) -> list[Tensor] | None:
    """The probabilities of the entries of each of the step's terms; None if they must be computed otherwise."""
    factors = _factors(candidates, shape)
    if factors is None or factors.merged:
        return None
    from fgnn.infer.exact.dense_kernels import share_rows

    weight = adjoint.contiguous().numpy()
    a, b, c = factors.tables
    parts = _parts(shape, factors)

    def work(part: slice) -> list[NDArray[np.float64]]:
        targets = [np.zeros(len(table)) for table in factors.tables]
        d, e, f = targets
        share_rows(a, b, c, factors.cards, factors.strides, part.start, weight[part], d, e, f, len(shape.terms))
        return targets

    by_part = _each(work, parts)
    totals = by_part[0]
    for targets in by_part[1:]:
        for total, target in zip(totals, targets, strict=True):
            total += target
    shapes = [candidates.slots[slot].shape for slot in shape.terms]
    return [torch.from_numpy(total).view(s) for total, s in zip(totals, shapes, strict=False)]


class _Factors:
    """The terms of a step as arrays for the compiled loops; unused places hold a one."""

    def __init__(self, tables: list[Tensor], scale: float, shape: DenseShape, merged: bool) -> None:
        from fgnn.infer.exact.dense_kernels import collapse

        self.scale, self.merged = scale, merged
        self.cards = np.array(shape.cardinalities, dtype=np.int64)
        self.strides = np.zeros((_FACTORS, len(shape.cardinalities)), dtype=np.int64)
        for t, table in enumerate(tables):
            inner = 1
            for axis in reversed(range(table.dim())):
                if table.shape[axis] > 1:
                    self.strides[t, axis] = inner
                    inner *= table.shape[axis]
        self.cards, self.strides = collapse(self.cards, self.strides)
        arrays = [table.contiguous().view(-1).numpy() for table in tables]
        self.tables = arrays + [np.ones(1)] * (_FACTORS - len(arrays))


def _factors(candidates: Candidates, shape: DenseShape) -> _Factors | None:
    numbers = candidates.numbers
    single = numbers.single and numbers.dtype == torch.float64 and numbers.batch.device.type == "cpu"
    if not single or shape.joint < _FEW_STATES or not has_numba():
        return None
    scale, tables = 0.0, []
    for slot in shape.terms:
        table = candidates.slots[slot]
        largest = float(table.max())
        if largest == -torch.inf:
            return None
        linear = (table - largest).exp_()
        if float(linear.min()) < _SMALL and bool(((linear < _SMALL) & (table > -torch.inf)).any()):
            return None
        scale += largest
        tables.append(linear)
    merged = len(tables) > _FACTORS
    while len(tables) > _FACTORS:
        tables[-2:] = [tables[-2] * tables[-1]]
    return _Factors(tables, scale, shape, merged)


def _parts(shape: DenseShape, factors: _Factors) -> list[slice]:
    """Rows for each thread: whole runs."""
    threads, run = torch.get_num_threads() if shape.joint >= _MANY_STATES else 1, int(factors.cards[-2])
    ends = (np.linspace(0, shape.rows // run, threads + 1).astype(np.int64) * run).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def _each(work: Callable[[slice], Result], parts: list[slice]) -> list[Result]:
    if len(parts) == 1:
        return [work(parts[0])]
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(work, parts))
