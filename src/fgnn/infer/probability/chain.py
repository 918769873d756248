r"""log Z of chains: a product of matrices in log2 N rounds of batched matrix products.

With :math:`M_t(i, j) = \exp[\theta_t(i, j) + \theta_{t+1}(j)]` the sum is
:math:`Z = \exp(\theta_0)^\top M_0 M_1 \cdots M_{N-2} 1`. Elimination multiplies vector by matrix, N - 1 times in turn,
which is mostly overhead for small matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch

_MOST_ENTRIES = {False: 1 << 24, True: 1 << 28}  # of all tables, on the CPU and on a GPU
_MOST_STATES = 128
# Entries are 0 or at least this, after every round, so that no product of two is lost.
_SMALLEST = {torch.float64: 1e-150, torch.float32: 1e-18}


def pays_off(batch: ModelBatch) -> bool:
    """Whether products of matrices are small enough in number and size, and the models have tables of their own."""
    if not len(batch) or len(batch.tables) != 1 or len(batch.tables[0].shape) != 2:
        return False
    values = batch.tables[0].distinct("values")
    most = _MOST_ENTRIES[batch.device.type == "cuda"]
    return len(values) == len(batch) and values.numel() <= most and max(batch.tables[0].shape) <= _MOST_STATES


def chain_order(batch: ModelBatch) -> Tensor | None:
    """The tables in the order of the chain 0, ..., N-1; None if the structure is not a chain of equal cardinalities."""

    def find() -> Tensor | None:
        n = batch.num_variables
        if len(batch.tables) != 1 or batch.budgets or batch.structured or n < 2:
            return None
        scopes = batch.tables[0].scopes
        if scopes.shape != (n - 1, 2) or int(batch.cardinalities.min()) != int(batch.cardinalities.max()):
            return None
        order = scopes[:, 0].argsort()
        first = torch.arange(n - 1, device=scopes.device)
        expected = torch.stack([first, first + 1], 1)
        return order if torch.equal(scopes[order], expected) else None

    return batch.structure.derived("is a chain", find)


def chain_log_z(batch: ModelBatch, order: Tensor, dtype: torch.dtype = torch.float64) -> Tensor | None:
    """log Z (B,) in float64, differentiable in every potential; None if a sum may underflow."""
    unary = batch.unary.to(dtype)
    values = batch.tables[0].distinct("values").to(dtype)[:, order]
    logs = values + unary[:, 1:, None, :]  # shape: (B, N - 1, k, k)
    scale = logs.detach().amax((2, 3)).clamp_min(torch.finfo(dtype).min)
    product = (logs - scale[..., None, None]).exp()
    total = scale.double().sum(1)
    lost = _lost(product, logs.detach() > -torch.inf)
    while (n := product.shape[1]) > 1:
        even = n // 2 * 2
        pairs = torch.matmul(product[:, 0:even:2], product[:, 1:even:2])
        # The result does not depend on the scale, so its gradient need not pass through it.
        largest = pairs.detach().amax((2, 3))
        largest = torch.where(largest > 0, largest, 1.0)
        pairs = pairs / largest[..., None, None]
        total = total + largest.double().log().sum(1)
        lost = lost | _lost(pairs, pairs.detach() > 0)
        product = pairs if even == n else torch.cat([pairs, product[:, even:]], 1)
    top = unary[:, 0].detach().amax(1).clamp_min(torch.finfo(dtype).min)
    start = (unary[:, 0] - top[:, None]).exp()
    lost = lost | _lost(start, unary[:, 0].detach() > -torch.inf)
    value = (start[:, :, None] * product[:, 0]).sum((1, 2))
    log_z = batch.constant.double() + total + top.double() + value.double().log()
    return None if bool(lost) else log_z


def _lost(values: Tensor, positive: Tensor) -> Tensor:
    """Whether an entry that should be positive is too small to be multiplied."""
    return (positive & (values.detach() < _SMALLEST[values.dtype])).any()
