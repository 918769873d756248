"""Sweeps of `dual`, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable

from fgnn.infer.dual.descent import Descent
from fgnn.infer.dual.layout import build_layout
from fgnn.infer.reporter import Reporter
from fgnn.pgm import ModelBatch


def value_after(batch: ModelBatch, sweeps: int, between: Callable[[Descent, int], None] = lambda _, n: None) -> float:
    """The dual after so many sweeps, none of which may raise it."""
    descent = Descent(batch, build_layout(batch), Reporter("dual", None))
    descent._deadline = math.inf
    last = math.inf
    for n in range(sweeps):
        descent._sweep()
        descent.bound = math.inf
        descent._lower_bound()
        assert descent.bound <= last + 1e-9 * abs(last if last < math.inf else 1)
        last = descent.bound
        between(descent, n)
    return last
