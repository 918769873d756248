r"""Sum-product on binary pairs in one compiled loop on a CPU: models side by side, one in each lane of the vector unit.

Messages are kept as ratios :math:`r = e^m`, for which an update needs no exponential and no logarithm. With
:math:`b_j` the product of the unary ratio of variable j and its messages, and the numbers of `PairSum`,

.. math:: r_{c \to i} \leftarrow r_{c \to i}^{1 - \rho} \Big( e^\gamma\,
    \frac{1 + \alpha\, b_j / r_{c \to j}}{1 + \beta\, b_j / r_{c \to j}} \Big)^{\rho},

where :math:`\rho` is the share of an update that is taken. Products must stay within the range of the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.exact.dense_sums import has_numba
from fgnn.infer.max_product.binary_pairs import RANGE, PairSum
from fgnn.infer.max_product.numbers import Numbers
from fgnn.infer.max_product.pool import Pool
from fgnn.infer.max_product.wiring import Wiring
from fgnn.pgm import ModelBatch
from fgnn.runtime.jit import Background

# Fewer models leave most of a vector empty; tensor operations then run along the factors instead.
_FEWEST_MODELS = 16


@dataclass(frozen=True, eq=False)
class PairLanes:
    """The structure as the loop reads it.

    Blocks of models without an active one cost nothing, so none is replaced by another.
    """

    every: ClassVar[int] = 64
    replaces: ClassVar[bool] = False
    rows: NDArray[np.int64]  # shape: (pairs, 2), the message rows
    belief_of: NDArray[np.int64]  # shape: (Q,)

    @classmethod
    def of(cls, wiring: Wiring, batch: ModelBatch, seconds: float = math.inf) -> PairLanes | None:
        """None if the models are too few, not binary pairs of moderate numbers on a CPU, or the loops take longer than
        ``seconds`` to load."""
        pairs = wiring.ratios_only and all(g.form == "table" and len(g.states) == 2 for g in wiring.groups)
        if not pairs or not wiring.groups or batch.device.type != "cpu" or len(batch) < _FEWEST_MODELS:
            return None
        if batch.dtype not in RANGE or not has_numba() or not _moderate(batch):
            return None
        if not _LOADING[batch.dtype].wait(seconds):
            return None
        return wiring.derived("pair lanes", lambda: cls._compile(wiring))

    @classmethod
    def _compile(cls, wiring: Wiring) -> PairLanes:
        rows = torch.cat([group.rows().t() for group in wiring.groups])
        return cls(np.ascontiguousarray(rows.numpy()), wiring.belief_of.numpy())

    def run(self, pool: Pool, deltas: Tensor, settings: Tensor, *, own: bool, iterations: int, steps: int) -> None:
        """Advance every active model of a pool by ``steps`` iterations, in place; see `FusedFlooding.run`."""
        from fgnn.infer.max_product.pair_lane_loops import advance

        gamma, alpha, beta = _stacked(pool.numbers)
        models, active, converged, done = (t.numpy() for t in (pool.models, pool.active, pool.converged, pool.done))
        rate, tolerance = settings[:2].tolist()
        advance(
            pool.messages.numpy(), pool.numbers.unary.numpy(), gamma, alpha, beta, self.rows, self.belief_of,
            models, active, converged, done, deltas.numpy(), rate, tolerance, iterations, steps,
        )  # fmt: skip


def _stacked(numbers: Numbers) -> list[NDArray[np.float64]]:
    """γ, α and β of all pairs, (2, pairs, B or 1) each, by the axis that the message goes to."""
    pairs = [x for x in numbers.factors if isinstance(x, PairSum)]
    width = max(x.theta.shape[-1] for x in pairs)
    stacked = []
    for name in ("gamma", "alpha", "beta"):
        parts = [torch.stack(getattr(x, name)).expand(-1, -1, width) for x in pairs]
        stacked.append(torch.cat(parts, 1).numpy())
    return stacked


def _moderate(batch: ModelBatch) -> bool:
    """Whether no product of ratios can leave the range of the numbers: a message is at most the span of its table."""
    most, total = RANGE[batch.dtype]
    reach = (batch.unary[:, :, -1] - batch.unary[:, :, 0]).abs()  # shape: (B, N); of a single state 0, or inf - 0
    reach = torch.where(batch.cardinalities == 1, 0.0, reach)
    for t in batch.tables:
        cells = t.distinct("values").flatten(2).unbind(2)
        span = reduce(torch.maximum, cells) - reduce(torch.minimum, cells)
        if bool((span > most).any()):
            return False
        for axis in range(2):
            reach = reach.index_add(1, t.scopes[:, axis], span.expand(len(batch), -1))
    return bool((reach <= total).all())


def _load(dtype: torch.dtype) -> None:
    """Load the loops, or compile them the first time in an installation: a call without models."""
    nothing = torch.zeros(1, 0, dtype=dtype)
    pair = PairSum.of(torch.zeros(2, 2, 1, 1, dtype=dtype))
    assert pair is not None
    empty = torch.zeros(0, dtype=torch.int64)
    flags = empty.bool()
    pool = Pool(
        empty, Numbers(nothing, (pair,)), nothing.expand(2, -1).contiguous(), flags, flags.clone(), empty.clone()
    )
    lanes = PairLanes(np.array([[0, 1]]), np.array([0, 0]))
    lanes.run(pool, nothing.clone(), torch.tensor([0.5, 0.0]), own=False, iterations=0, steps=0)


_LOADING = {dtype: Background(partial(_load, dtype)) for dtype in RANGE}
