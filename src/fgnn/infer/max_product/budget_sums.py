r"""The messages of budgets in sum-product, by counting.

With :math:`\nu_j` the incoming messages of a budget over n variables, two passes over them give

.. math::
    P_i(k) &= \log \sum_{\hat x_1, \dots, \hat x_i : \text{k ones}} \exp \sum_{j \le i} \nu_j(\hat x_j), \\
    R_i(k) &= \log \sum_{\hat x_i, \dots, \hat x_n : \text{in bounds after k ones}}
        \exp \sum_{j \ge i} \nu_j(\hat x_j), \\
    m_{c \to i}(x_i) &= \log \sum_k \exp \big(P_{i-1}(k) + R_{i+1}(k + x_i)\big)

so all messages take O(n²).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.infer.max_product.messages import Bound


def budget_sums(nu: Tensor, at_least: Bound, at_most: Bound) -> Tensor:
    """Full messages of budgets, not normalised: ``-inf`` exactly where no count of the others is within the bounds.

    Args:
        nu: Shape (n, 2, C, B).
        at_least: The smallest number of ones.
        at_most: The largest number of ones.

    Returns:
        The messages, shape (n, 2, C, B).
    """
    rest = _in_bounds_after(nu, at_least, at_most)
    none = _none(nu)
    before = torch.full_like(rest[0], none)  # shape: (n + 1, C, B)
    before[0] = 0.0
    messages = []
    for i, ratios in enumerate(nu.unbind(0)):
        after = rest[i + 1]
        shifted = torch.cat([after[1:], torch.full_like(after[:1], none)])
        messages.append(torch.stack([(before + after).logsumexp(0), (before + shifted).logsumexp(0)]))
        one_more = torch.cat([torch.full_like(before[:1], none), before[:-1]])
        before = torch.logaddexp(before + ratios[0], one_more + ratios[1])
    return torch.stack(messages)


def budget_total(nu: Tensor, at_least: Bound, at_most: Bound) -> Tensor:
    """log Σ exp Σ_j ν_j(x_j) over the states within the bounds, shape (C, B)."""
    return _in_bounds_after(nu, at_least, at_most)[0][0]


def _in_bounds_after(nu: Tensor, at_least: Bound, at_most: Bound) -> list[Tensor]:
    """R_1, ..., R_{n+1}, each of shape (n + 1, C, B)."""
    n, none = int(nu.shape[0]), _none(nu)
    counts = torch.arange(n + 1, device=nu.device).view(-1, 1, 1)
    outside = (counts < at_least) | (counts > at_most)
    last = torch.zeros(n + 1, *nu.shape[2:], dtype=nu.dtype, device=nu.device).masked_fill(outside, none)
    rest = [last]
    for ratios in reversed(nu.unbind(0)):
        one_more = torch.cat([rest[-1][1:], torch.full_like(last[:1], none)])
        rest.append(torch.logaddexp(rest[-1] + ratios[0], one_more + ratios[1]))
    return rest[::-1]


def _none(nu: Tensor) -> float:
    """The logarithm of nothing; finite with gradients, since that of log-sum-exp is undefined if all terms are -inf."""
    return -1e30 if nu.requires_grad else -torch.inf
