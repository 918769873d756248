"""Check that sums of log-potentials do not overflow."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch

# The largest absolute sum of log-potentials that leaves every method room for its own sums and differences: in float64,
# and in float32 or types that are converted to it.
_MOST_64, _MOST_32 = 1e300, 1e30
_CHUNK = 1 << 24  # entries examined at a time, to bound temporary memory


def check_magnitude(batch: ModelBatch) -> None:
    r"""Refuse models whose scores could overflow, :math:`\sum_c \max_{x_c} |\theta_c(x_c)|` over the finite entries.

    Beyond the limit (1e300 in float64, 1e30 in float32) a sum may become infinite, so that a feasible assignment would
    look forbidden or two different ones equal. NaN and ``+inf`` are refused too.
    """
    batch = batch.detach()
    most = _MOST_64 if batch.dtype == torch.float64 else _MOST_32
    parts = [(batch.unary, batch.num_variables)]
    parts += [(f.potentials(batch.dtype), f.num_terms) for f in batch.factors if f.num_terms]
    # The largest entry times the number of factors nearly always suffices and needs no sum per model.
    total = sum((_largest(values) * count for values, count in parts), _largest(batch.constant[:, None]))
    if float(total) <= most:
        return
    sums = _finite(batch.constant).double().abs()
    for values, _ in parts:
        if values.numel():
            sums = sums + _finite(values).double().abs().flatten(2).amax(2).sum(1)
    over = ~(sums <= most)
    if bool(over.any()):
        b = int(over.nonzero()[0])
        where = f" of model {b}" if len(batch) > 1 else ""
        raise ValueError(
            f"Expected log-potentials{where} that add up to at most {most:g} in size (got {float(sums[b]):g}); "
            "divide them all by one number, which changes no optimum, or use -inf for what is forbidden"
        )


def _largest(values: Tensor) -> Tensor:
    """The largest absolute finite entry, as float64; NaN or inf if there is an entry of NaN or +inf."""
    step = max(1, _CHUNK // max(1, values[:1].numel()))
    starts = range(0, len(values), step) if values.numel() else range(0)
    maxima = [_finite(values[at : at + step]).abs().amax() for at in starts]
    return torch.stack(maxima).amax().double() if maxima else torch.zeros((), dtype=torch.float64)


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values == -torch.inf, 0.0)
