"""Numerical tolerances that the solvers share, and the tests of optimality that use them.

Scores are sums of float64 numbers: two sums of the same terms in another order differ by far less than 1e-9 of their
size, and two different assignments that close are equally good to any user.
"""

from __future__ import annotations

import torch
from torch import Tensor

# An assignment whose score is within this of an upper bound, relative to the larger of 1 and the score, is optimal.
PROOF = 1e-9
# A local move must gain more than this; smaller differences are rounding.
GAIN = 1e-9
# A marginal this close to 0 or 1 counts as integral: ten times the feasibility tolerance of HiGHS.
INTEGRAL = 1e-6


def meets_bound(score: Tensor, bound: Tensor) -> Tensor:
    """Whether feasible scores reach their upper bounds, up to `PROOF`."""  # shape: (B,), bool
    return (score >= bound - PROOF * bound.abs().clamp(min=1.0)) & (score > -torch.inf)


def is_proved(score: Tensor, bound: Tensor) -> Tensor:
    """Whether bounds prove the scores optimal, or, where both are ``-inf``, the models infeasible."""
    return meets_bound(score, bound) | ((bound == -torch.inf) & (score == -torch.inf))
