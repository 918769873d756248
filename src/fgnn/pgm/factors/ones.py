r"""The messages of factors that allow an interval of the number of ones: budgets, and linear constraints of weights 1.

In max-product they rank their incoming messages (`ones_ratios`). In sum-product they count. With :math:`\nu_j` the
incoming messages of n variables and :math:`\theta(k)` the log-potential of k ones, two passes over them give

.. math::
    P_i(k) &= \log \sum_{\hat x_1, \dots, \hat x_i : \text{k ones}} \exp \sum_{j \le i} \nu_j(\hat x_j), \\
    R_i(k) &= \log \sum_{\hat x_i, \dots, \hat x_n} \exp \Big[ \theta \Big(k + \sum_{j \ge i} \hat x_j\Big)
        + \sum_{j \ge i} \nu_j(\hat x_j) \Big], \\
    m_{c \to i}(x_i) &= \log \sum_k \exp \big(P_{i-1}(k) + R_{i+1}(k + x_i)\big)

so all messages take O(n · T) for the T numbers up to the largest that is allowed. The axes of tensors are variables or
states, factors of a group, models of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.pgm.factors.ranking import ranked

# A bound on the number of ones: one for a whole group, or a tensor of shape (C, B) or (C, 1).
Bound = int | Tensor

# Messages of constraints can diverge on loops. They are clamped here, where a sum over a million is still finite.
LIMIT = {torch.float64: 1e290, torch.float32: 1e30}


def ones_ratios(d: Tensor, at_least: Bound, at_most: Bound, out: Tensor | None = None) -> Tensor:
    r"""Messages as log-ratios of state 1 to state 0, from the incoming ratios.

    The best sum of the other variables with k ones among them is concave in k. Its increments are their ratios in
    descending order. So a one at i costs nothing as long as the optimum of the others leaves room. Otherwise it
    displaces the last of them that fitted, or replaces the first that was forced. With :math:`D_i(k)` the k-th largest
    ratio of the others (:math:`D_i(0) = \infty,\ D_i(n) = -\infty`),

    .. math:: m_i = -\max(D_i(\text{at\_most}), 0) - \min(D_i(\text{at\_least}), 0)

    which takes one sort, O(n log n), for all n messages.

    Args:
        d: Shape (n, C, B).
        at_least: The smallest number of ones.
        at_most: The largest number of ones.
        out: Output, shape (n, C, B); may be ``d``.
    """
    limit = LIMIT[d.dtype]
    floor = not (isinstance(at_least, int) and at_least == 0)
    bounds = [at_most, at_least] if floor else [at_most]
    ranks = tuple(r for b in bounds if isinstance(b, int) for r in (b, b + 1) if 1 <= r <= d.shape[0])
    order = ranked(d, ranks if all(isinstance(b, int) for b in bounds) else None)
    # Select by a factor of 0 or 1 and an extremum: exact, and many times faster than `where` on a CPU.
    saved: Tensor | None = None
    if floor:
        kth, following = _around(order, at_least)
        saved = torch.empty_like(d)
        torch.ge(d, kth, out=saved)
        saved.mul_(-following.clamp(-limit, 0))
        torch.maximum(saved, -kth.clamp(-limit, 0), out=saved)
    kth, following = _around(order, at_most)
    messages = torch.empty_like(d) if out is None else out
    fits, other = -kth.clamp(0, limit), -following.clamp(0, limit)
    torch.lt(d, kth, out=messages)
    messages.mul_(fits)
    torch.minimum(messages, other, out=messages)
    return messages if saved is None else messages.add_(saved)


def _around(order: Tensor | list[Tensor], k: Bound) -> tuple[Tensor, Tensor]:
    """The k-th largest, which is D(k) of the variables below it, and D(k) of the variables at or above it."""
    n = len(order)
    if isinstance(k, int):
        if 0 < k < n:
            return order[k - 1], order[k]
        infinity = order[0].new_full((), torch.inf)
        return (infinity, infinity) if k == 0 else (order[n - 1], -infinity)
    descending = order if isinstance(order, Tensor) else torch.stack(order)
    ends = torch.full_like(descending[:1], torch.inf)
    padded = torch.cat([ends, descending, -ends])  # shape: (n + 2, C, B)
    rank = k.expand(padded.shape[1:])[None]
    following = torch.where(rank == 0, 0, rank + 1)
    return padded.gather(0, rank)[0], padded.gather(0, following)[0]


def ones_messages(nu: Tensor, at_least: Bound, at_most: Bound, *, normalise: bool = True) -> Tensor:
    """Messages of all states: ``-inf`` exactly where no count of the other variables is within the bounds.

    Args:
        nu: Shape (n, 2, C, B).
        at_least: The smallest number of ones.
        at_most: The largest number of ones.
        normalise: Whether the better state of a message is set to 0.
    """
    n = int(nu.shape[0])
    dead = (nu == -torch.inf).all(1)  # shape: (n, C, B)
    d = (nu[:, 1] - nu[:, 0]).masked_fill(dead, 0.0)
    ratio = ones_ratios(d, at_least, at_most)
    must_be_one, must_be_zero = d == torch.inf, d == -torch.inf
    # Counts over the other variables.
    fewest = must_be_one.sum(0) - must_be_one.long()
    most = n - 1 - (must_be_zero.sum(0) - must_be_zero.long())
    none = (dead.sum(0) - dead.long()) > 0
    values = torch.stack([(-ratio).clamp(max=0), ratio.clamp(max=0)], 1)
    if not normalise:
        values = values + _best_of_others(nu, d, at_least, at_most)[:, None]
    impossible = [(fewest > at_most - v) | (most < at_least - v) | none for v in (0, 1)]
    return values.masked_fill(torch.stack(impossible, 1), -torch.inf)


def _best_of_others(nu: Tensor, d: Tensor, at_least: Bound, at_most: Bound) -> Tensor:
    """The best sum of the other variables if variable i takes the better state for them, shape (n, C, B)."""
    n = int(nu.shape[0])
    base = torch.where(nu[:, 0] > -torch.inf, nu[:, 0], nu[:, 1])  # a one that is the only state gains nothing
    base = base.masked_fill(base == -torch.inf, 0.0)
    finite = torch.where(d.isinf(), 0.0, d)
    order = d.sort(dim=0, descending=True).values
    zero = torch.zeros_like(d[:1])
    sums = torch.cat([zero, torch.where(order.isinf(), 0.0, order).cumsum(0), zero])  # shape: (n + 2, C, B)
    gains = (d > 0).long()
    least = torch.as_tensor(at_least, device=d.device)
    most = torch.as_tensor(at_most, device=d.device)
    count = (gains.sum(0) - gains).maximum((least - 1).clamp(min=0)).minimum(most.clamp(max=n - 1))
    descending = torch.cat([torch.full_like(zero, torch.inf), order])
    counted = (d >= descending.gather(0, count)) & (count > 0)
    best = torch.where(counted, sums.gather(0, count + 1) - finite, sums.gather(0, count))
    return base.sum(0) - base + best


def best_count(theta: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
    """The largest sum of θ (P, n + 1) at the number of ones and of ν (P, n, 2) at the states, and the states (P, n)."""
    gain = nu[..., 1] - nu[..., 0]  # inf: must be 1, -inf: must be 0
    gain = gain.masked_fill((nu == -torch.inf).all(2), 0.0)
    ordered, order = gain.sort(1, descending=True)
    base = torch.where(gain == torch.inf, nu[..., 1], nu[..., 0]).sum(1)
    forced, most = (gain == torch.inf).sum(1, keepdim=True), (gain > -torch.inf).sum(1, keepdim=True)
    number = torch.arange(theta.shape[1], device=theta.device)
    sums = torch.cat([theta.new_zeros(len(theta), 1), torch.where(ordered.isinf(), 0.0, ordered).cumsum(1)], 1)
    value, count = (theta + sums).masked_fill((number < forced) | (number > most), -torch.inf).max(1)
    x = torch.zeros_like(order).scatter(1, order, (number[:-1] < count[:, None]).long())
    return base + value, x


def ones_sums(theta: Tensor, nu: Tensor) -> Tensor:
    """Messages of all states in sum-product, not normalised: ``-inf`` exactly where every number is forbidden.

    Args:
        theta: The log-potential of every number of ones, shape (T, C, B or 1); beyond these all are forbidden.
        nu: Shape (n, 2, C, B); so is the result.
    """
    rest = _rests(theta, nu)
    none = _none(nu)
    before = torch.full_like(rest[0], none)  # shape: (T, C, B)
    before[0] = 0.0
    messages = []
    for i, ratios in enumerate(nu.unbind(0)):
        after = rest[i + 1]
        shifted = torch.cat([after[1:], torch.full_like(after[:1], none)])
        messages.append(torch.stack([(before + after).logsumexp(0), (before + shifted).logsumexp(0)]))
        one_more = torch.cat([torch.full_like(before[:1], none), before[:-1]])
        before = torch.logaddexp(before + ratios[0], one_more + ratios[1])
    return torch.stack(messages)


def ones_total(theta: Tensor, nu: Tensor) -> Tensor:
    """The logarithm of the sum over all joint states, shape (C, B)."""
    return _rests(theta, nu)[0][0]


def _rests(theta: Tensor, nu: Tensor) -> list[Tensor]:
    """R_1, ..., R_{n+1}, each of shape (T, C, B)."""
    none = _none(nu)
    rest = [theta.expand(-1, *nu.shape[2:]).clamp(min=none)]
    for ratios in reversed(nu.unbind(0)):
        one_more = torch.cat([rest[-1][1:], torch.full_like(rest[-1][:1], none)])
        rest.append(torch.logaddexp(rest[-1] + ratios[0], one_more + ratios[1]))
    return rest[::-1]


def _none(nu: Tensor) -> float:
    """The logarithm of nothing; finite with gradients, since that of log-sum-exp is undefined if all terms are -inf."""
    return -1e30 if nu.requires_grad else -torch.inf
