r"""Probabilities that hold in the models' own numbers, whatever constants they contain.

A constant added to a factor changes no probability, but in floating point it hides the differences that do. Methods
therefore see factors less their largest entries. Every term of a score is then at most 0, so that a sum of k of them
near the best has an error below :math:`k \epsilon |\log Z|`, which is also the relative error of a probability.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fgnn.infer.probability.result import Beliefs
from fgnn.pgm import ModelBatch

# The largest error of log Z, and relative error of a probability, of an answer that is called exact.
EXACT = 1e-6
_SMALL = 2.0**10  # constants that add up to less hide nothing that matters


def centred(batch: ModelBatch, size: float = torch.inf) -> tuple[ModelBatch, Tensor | None]:
    """The models in float64 without large constants, and what was subtracted, (B,); as they are if they have none.

    Args:
        batch: The models.
        size: An upper bound on the sum of the largest absolute log-potentials, see `check_magnitude`.
    """
    if size <= _SMALL or not len(batch):
        return batch, None
    groups = [batch.unary, *(t.distinct("values") for t in batch.tables)]
    peaks = [_finite(v.detach().flatten(2).amax(2)).double() if v.numel() else v.new_zeros(1, 1) for v in groups]
    constant = _finite(batch.constant.detach()).double()
    total = constant.abs() + sum(peak.abs().sum(1) for peak in peaks)
    if float(total.max()) <= _SMALL:
        return batch, None
    parts = [
        values.double() - peak.view(*peak.shape, *(1 for _ in values.shape[2:])) if values.numel() else values.double()
        for values, peak in zip(groups, peaks, strict=True)
    ]
    wide = batch.to(dtype=torch.float64)
    tables = [
        replace(t, values=v.expand(len(batch), *v.shape[1:])) for t, v in zip(wide.tables, parts[1:], strict=True)
    ]
    without = replace(wide, unary=parts[0], tables=tuple(tables), constant=wide.constant - constant)
    return without, sum((peak.sum(1) for peak in peaks), constant)


def certified(batch: ModelBatch, beliefs: Beliefs, offset: Tensor | None) -> Beliefs:
    """The beliefs of centred models as those of the models themselves, called exact only if rounding allows it.

    A log Z or an upper bound of -inf is a proof that no assignment is possible, whatever else the method reached.
    """
    log_z, bound = beliefs.log_z, beliefs.bound
    impossible = (log_z.detach() == -torch.inf) | (bound == -torch.inf)
    terms = batch.num_variables + sum(len(scopes) for scopes in _scopes(batch)) + 4
    # An error of terms · ε · (1 + |log Z|) is at most EXACT.
    precise = log_z.detach().abs() <= EXACT / (terms * torch.finfo(beliefs.unary.dtype).eps) - 1
    if offset is not None:
        log_z, bound = log_z + offset, bound + offset
    tables = None if beliefs.tables is None else tuple(_normalised(p, 2) for p in beliefs.tables)
    return replace(
        beliefs,
        unary=_normalised(beliefs.unary, 2),
        tables=tables,
        exact=impossible | (beliefs.exact & precise),
        timed_out=beliefs.timed_out & ~impossible,
        log_z=log_z.masked_fill(impossible, -torch.inf),
        bound=bound,
    )


def _normalised(p: Tensor, lead: int) -> Tensor:
    """Probabilities that add up to one over all axes but the first ``lead``; what is all zero stays zero."""
    if not p.numel():
        return p
    total = p.flatten(lead).sum(lead)
    return p / torch.where(total > 0, total, 1.0).view(*total.shape, *(1 for _ in p.shape[lead:]))


def _scopes(batch: ModelBatch) -> list[Tensor]:
    return [group.scopes for group in batch.structure.groups.values()]


def _finite(values: Tensor) -> Tensor:
    return values.masked_fill(values == -torch.inf, 0.0)
