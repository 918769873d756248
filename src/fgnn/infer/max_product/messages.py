r"""The messages of tables and budgets to their variables in max-product.

With :math:`\nu_i` the incoming message of variable i,

.. math:: m_{c \to i}(x_i) = \max_{\hat x_c : \hat x_i = x_i} \Big[ \theta_c(\hat x_c)
    + \sum_{i' \in s(c), i' \ne i} \nu_{i'}(\hat x_{i'}) \Big]

The axes of tensors are states, factors of a group, models of a batch: (k, C, B). Messages have one of two forms.
*Ratios*, if no state is impossible: states 1..k-1 relative to state 0, which is 0 and not stored. *Full*: all k states,
with ``-inf`` for impossible ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.ranking import ranked
from fgnn.infer.max_product.wiring import Group, Out

# A bound of budgets: one number for a whole group, or a tensor of shape (C, B) or (C, 1).
Bound = int | Tensor

# Messages of budgets can diverge on loops. They are clamped here, where a sum over a million is still finite.
LIMIT = {torch.float64: 1e290, torch.float32: 1e30}


def table_messages(theta: Tensor, incoming: list[Tensor], *, full: bool, total: bool = False) -> list[Tensor]:
    """Messages of tables to each of their axes.

    Half of the axes are maximised out for the other half and vice versa, recursively: about four passes over the
    tables, whatever their arity. No message is added and subtracted again, so ``-inf`` is safe.

    Args:
        theta: Shape (k_1, ..., k_A, C, B); B may be 1 where all models share the tables.
        incoming: ν of each axis: (k_a, C, B) if ``full``, else ratios (k_a - 1, C, B).
        full: The form of the messages in and out. Full messages are not normalised.
        total: Whether to sum axes out (log-sum-exp, sum-product) instead of maximising over them.
    """
    out: list[Tensor] = [theta] * len(incoming)

    def descend(rest: Tensor, axes: list[int]) -> None:
        if len(axes) == 1:
            out[axes[0]] = rest if full else rest[1:] - rest[:1]
            return
        half = len(axes) // 2
        for keep, drop in ((axes[:half], axes[half:]), (axes[half:], axes[:half])):
            smaller = rest
            for a in reversed(drop):  # from the last, so that the positions of earlier axes stay
                smaller = drop_axis(smaller, axes.index(a), incoming[a], full=full, total=total)
            descend(smaller, keep)

    descend(theta, list(range(len(incoming))))
    return [m.expand(*m.shape[:-1], nu.shape[-1]) for m, nu in zip(out, incoming, strict=True)]


def drop_axis(theta: Tensor, axis: int, message: Tensor, *, full: bool, total: bool = False) -> Tensor:
    """Add a message along an axis, then maximise over it, or sum it out if ``total``."""
    states = theta.shape[axis]
    between = theta.dim() - axis - 3
    spread = message.reshape(message.shape[0], *[1] * between, *message.shape[1:])
    if full:
        joint = theta + spread
        return joint.logsumexp(axis) if total else joint.amax(axis)
    lowest = theta.select(axis, 0)
    if states == 1:
        return lowest
    if total:
        return torch.logaddexp(lowest, (theta.narrow(axis, 1, states - 1) + spread).logsumexp(axis))
    if states == 2:
        return torch.maximum(lowest, theta.select(axis, 1) + spread[0])
    return torch.maximum(lowest, (theta.narrow(axis, 1, states - 1) + spread).amax(axis))


@dataclass(frozen=True, eq=False)
class PairClamp:
    r"""Tables over two binary variables as functions of a log-ratio.

    The message :math:`\max(\theta_{10}, \theta_{11} + \nu) - \max(\theta_{00}, \theta_{01} + \nu)` is
    :math:`\operatorname{clamp}(\sigma\nu + \gamma,\ l,\ u)`, with slope :math:`\sigma = 1` where equal states are
    preferred and -1 where unequal ones are. Tensors are (C, B or 1).
    """

    sign: Tensor
    shift: tuple[Tensor, Tensor]  # by the axis the message goes to, as are low and high
    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, theta: Tensor) -> PairClamp:
        """From tables (2, 2, C, B or 1) without ``-inf``."""
        t00, t01, t10, t11 = theta.flatten(0, 1).unbind(0)
        equal = t11 - t01 >= t10 - t00
        ends = ((t10 - t00, t11 - t01), (t01 - t00, t11 - t10))  # the messages for ν -> -inf and ν -> inf
        return cls(
            sign=2 * equal.to(theta.dtype) - 1,
            shift=(torch.where(equal, t11 - t00, t10 - t01), torch.where(equal, t11 - t00, t01 - t10)),
            low=(torch.minimum(*ends[0]), torch.minimum(*ends[1])),
            high=(torch.maximum(*ends[0]), torch.maximum(*ends[1])),
        )

    def send(self, group: Group, nu: Tensor, *, full: bool, normalise: bool, total: bool, out: Out = None) -> Tensor:
        """As other potentials, see `potentials`."""
        return self.ratios(nu, torch.empty_like(nu) if out is None else out)

    def ratios(self, nu: Tensor, out: Tensor) -> Tensor:
        """The messages (2, C, B) for incoming ratios (2, C, B), which ``out`` may overwrite."""
        first = nu[0].clone() if out.data_ptr() == nu.data_ptr() else nu[0]
        for shift, low, high, incoming, to in zip(
            self.shift, self.low, self.high, (nu[1], first), out.unbind(0), strict=True
        ):
            if self.sign.shape[-1] == nu.shape[-1]:
                torch.clamp(torch.addcmul(shift, self.sign, incoming, out=to), low, high, out=to)
            else:  # shared by the models: on a CPU only binary operations broadcast fast
                torch.mul(incoming, self.sign, out=to).add_(shift)
                torch.minimum(torch.maximum(to, low, out=to), high, out=to)
        return out


def budget_ratios(d: Tensor, at_least: Bound, at_most: Bound, out: Tensor | None = None) -> Tensor:
    r"""Messages of budgets as log-ratios of state 1 to state 0, from the incoming ratios.

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


def budget_messages(nu: Tensor, at_least: Bound, at_most: Bound, *, normalise: bool = True) -> Tensor:
    """Full messages of budgets: ``-inf`` exactly where no count of the other variables is within the bounds.

    Args:
        nu: Shape (n, 2, C, B).
        at_least: The smallest number of ones.
        at_most: The largest number of ones.
        normalise: Whether the better state of a message is set to 0.
    """
    n = int(nu.shape[0])
    dead = (nu == -torch.inf).all(1)  # shape: (n, C, B)
    d = (nu[:, 1] - nu[:, 0]).masked_fill(dead, 0.0)
    ratio = budget_ratios(d, at_least, at_most)
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
