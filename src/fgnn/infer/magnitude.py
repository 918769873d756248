"""Check that sums of log-potentials do not overflow."""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.pgm import ModelBatch

# The largest absolute sum of log-potentials that leaves every method room for its own sums and differences: in float64,
# and in float32 or types that are converted to it.
_MOST_64, _MOST_32 = 1e300, 1e30
_CHUNK = 1 << 24  # entries examined at a time, to bound temporary memory


@torch.no_grad()
def check_magnitude(batch: ModelBatch) -> float:
    r"""Refuse models whose scores could overflow, :math:`\sum_c \max_{x_c} |\theta_c(x_c)|` over the finite entries.

    Beyond the limit (1e300 in float64, 1e30 in float32) a sum may become infinite, so that a feasible assignment would
    look forbidden or two different ones equal. NaN and ``+inf`` are refused too.

    Returns:
        An upper bound on the sum, for all models.
    """
    most = _MOST_64 if batch.dtype == torch.float64 else _MOST_32
    parts = [(batch.constant[:, None], 1), (batch.unary, batch.num_variables)]
    parts += [(f.potentials(batch.dtype), f.num_terms) for f in batch.factors if f.num_terms]
    parts = [(values, count) for values, count in parts if values.numel()]
    # The largest entry times the number of factors nearly always suffices and needs no sum per model. Without -inf
    # among the entries one pass finds it.
    for ends in (torch.aminmax, _finite_ends):
        found = torch.stack([end for values, _ in parts for end in ends(values)]).tolist() if parts else []
        sizes = [max(-low, high) for low, high in zip(found[::2], found[1::2], strict=True)]
        total: float = sum(size * count for size, (_, count) in zip(sizes, parts, strict=True))
        if total <= most:
            return total
    sums = _finite(batch.constant).double().abs()
    for values, _ in parts[1:]:
        sums = sums + _finite(values).double().abs().flatten(2).amax(2).sum(1)
    over = ~(sums <= most)
    if bool(over.any()):
        b = int(over.nonzero()[0])
        where = f" of model {b}" if len(batch) > 1 else ""
        raise ValueError(
            f"Expected log-potentials{where} that add up to at most {most:g} in size (got {float(sums[b]):g}); "
            "divide them all by one number, which changes no optimum, or use -inf for what is forbidden"
        )
    return float(sums.max())


def _finite_ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest entry, not counting -inf; NaN if there is one."""
    step = max(1, _CHUNK // values[:1].numel())
    ends = [torch.stack(torch.aminmax(_finite(values[at : at + step]))) for at in range(0, len(values), step)]
    low, high = torch.stack(ends, 1)
    return low.amin(), high.amax()


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values == -torch.inf, 0.0)
