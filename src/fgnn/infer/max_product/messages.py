r"""What a factor sends to its variables in max-product, for tables and for budgets.

With :math:`\nu_i` the incoming message of variable i,

.. math:: m_{c \to i}(x_i) = \max_{\hat x_c : \hat x_i = x_i} \Big[ \theta_c(\hat x_c)
    + \sum_{i' \in s(c), i' \ne i} \nu_{i'}(\hat x_{i'}) \Big]

Tensors carry the states first, then the factors of a group, then the models of a batch: (k, C, B). A message is held
in one of two forms. *Ratios*, where no state is impossible: the states 1..k-1 against state 0, which is 0 and not
stored. *Full*: all k states, with ``-inf`` for the impossible ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.ranking import ranked

# A budget's bound: one number for all of a group, or a tensor of shape (C, B) or (C, 1).
Bound = int | Tensor

# Messages of budgets can grow without end on loops; they stop here, where a sum over a million is still finite.
LIMIT = {torch.float64: 1e290, torch.float32: 1e30}


def table_messages(theta: Tensor, incoming: list[Tensor], *, full: bool) -> list[Tensor]:
    """Messages of tables to each of their axes.

    Half of the axes are maximised out for the other half and the other way round, down to single axes: about four
    passes over the tables whatever their arity. No message is added and subtracted again, so ``-inf`` is safe.

    Args:
        theta: Shape (k_1, ..., k_A, C, B); B may be 1 where all models share the tables.
        incoming: For each axis ν, as (k_a, C, B) where ``full``, else as ratios (k_a - 1, C, B).
        full: The form of the messages in and out; full ones are not normalised.
    """
    out: list[Tensor] = [theta] * len(incoming)

    def descend(rest: Tensor, axes: list[int]) -> None:
        if len(axes) == 1:
            out[axes[0]] = rest if full else rest[1:] - rest[:1]
            return
        half = len(axes) // 2
        for keep, drop in ((axes[:half], axes[half:]), (axes[half:], axes[:half])):
            smaller = rest
            for a in reversed(drop):  # from the last, so that the places of the axes before it stay
                smaller = _max_out(smaller, axes.index(a), incoming[a], full)
            descend(smaller, keep)

    descend(theta, list(range(len(incoming))))
    return [m.expand(*m.shape[:-1], nu.shape[-1]) for m, nu in zip(out, incoming, strict=True)]


def _max_out(theta: Tensor, axis: int, message: Tensor, full: bool) -> Tensor:
    """Add a message along an axis and maximise the axis out."""
    states = theta.shape[axis]
    between = theta.dim() - axis - 3
    spread = message.reshape(message.shape[0], *[1] * between, *message.shape[1:])
    if full:
        return (theta + spread).amax(axis)
    lowest = theta.select(axis, 0)
    if states == 1:
        return lowest
    if states == 2:
        return torch.maximum(lowest, theta.select(axis, 1) + spread[0])
    return torch.maximum(lowest, (theta.narrow(axis, 1, states - 1) + spread).amax(axis))


@dataclass(frozen=True, eq=False)
class PairClamp:
    r"""Tables over two binary variables, as what they do to a log-ratio.

    :math:`\max(\theta_{10}, \theta_{11} + \nu) - \max(\theta_{00}, \theta_{01} + \nu)` is a line of slope +1 where
    equal states are preferred, -1 where unequal ones are, cut off at both ends:
    :math:`\operatorname{clamp}(\sigma\nu + \gamma,\ l,\ u)`. Tensors are (C, B or 1).
    """

    sign: Tensor
    shift: tuple[Tensor, Tensor]  # by the axis sent to, as the following
    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, theta: Tensor) -> PairClamp:
        """From tables (2, 2, C, B or 1) without ``-inf``."""
        t00, t01, t10, t11 = theta.flatten(0, 1).unbind(0)
        equal = t11 - t01 >= t10 - t00
        ends = ((t10 - t00, t11 - t01), (t01 - t00, t11 - t10))  # the messages as ν falls and as it rises
        return cls(
            sign=2 * equal.to(theta.dtype) - 1,
            shift=(torch.where(equal, t11 - t00, t10 - t01), torch.where(equal, t11 - t00, t01 - t10)),
            low=(torch.minimum(*ends[0]), torch.minimum(*ends[1])),
            high=(torch.maximum(*ends[0]), torch.maximum(*ends[1])),
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> PairClamp:
        """The same with every tensor changed."""
        shift, low, high = ((change(one), change(two)) for one, two in (self.shift, self.low, self.high))
        return PairClamp(change(self.sign), shift, low, high)

    def ratios(self, nu: Tensor, out: Tensor) -> Tensor:
        """The messages (2, C, B) for incoming ratios (2, C, B), which ``out`` may overwrite."""
        first = nu[0].clone() if out.data_ptr() == nu.data_ptr() else nu[0]
        for shift, low, high, come, to in zip(
            self.shift, self.low, self.high, (nu[1], first), out.unbind(0), strict=True
        ):
            if self.sign.shape[-1] == nu.shape[-1]:
                torch.clamp(torch.addcmul(shift, self.sign, come, out=to), low, high, out=to)
            else:  # shared by the models: on a CPU only operations of two operands are quick at spreading one
                torch.mul(come, self.sign, out=to).add_(shift)
                torch.minimum(torch.maximum(to, low, out=to), high, out=to)
        return out


def budget_ratios(d: Tensor, at_least: Bound, at_most: Bound, out: Tensor | None = None) -> Tensor:
    r"""Messages of budgets as log-ratios of state 1 to state 0, from the incoming ratios.

    The best sum of the others with k ones among them is concave in k; its steps are their ratios in descending order.
    So a one at i is free while the others' own optimum leaves room; else it displaces the last of them that fitted, or
    spares the first that was forced. With :math:`D_i(k)` the k-th largest of the others' ratios
    (:math:`D_i(0) = \infty,\ D_i(n) = -\infty`),

    .. math:: m_i = -\max(D_i(\text{at\_most}), 0) - \min(D_i(\text{at\_least}), 0)

    which takes one sort, O(n log n) for all n messages.

    Args:
        d: Shape (n, C, B).
        at_least: The least number of ones.
        at_most: The greatest number of ones.
        out: Where to put the messages, shape (n, C, B); may be ``d``.
    """
    limit = LIMIT[d.dtype]
    floor = not (isinstance(at_least, int) and at_least == 0)
    bounds = [at_most, at_least] if floor else [at_most]
    ranks = tuple(r for b in bounds if isinstance(b, int) for r in (b, b + 1) if 1 <= r <= d.shape[0])
    order = ranked(d, ranks if all(isinstance(b, int) for b in bounds) else None)
    # Selection by a factor of 0 or 1 and an extremum: exact, and on a CPU many times faster than `where`.
    spared: Tensor | None = None
    if floor:
        kth, following = _around(order, at_least)
        spared = torch.empty_like(d)
        torch.ge(d, kth, out=spared)
        spared.mul_(-following.clamp(-limit, 0))
        torch.maximum(spared, -kth.clamp(-limit, 0), out=spared)
    kth, following = _around(order, at_most)
    messages = torch.empty_like(d) if out is None else out
    fits, other = -kth.clamp(0, limit), -following.clamp(0, limit)
    torch.lt(d, kth, out=messages)
    messages.mul_(fits)
    torch.minimum(messages, other, out=messages)
    return messages if spared is None else messages.add_(spared)


def _around(order: Tensor | list[Tensor], k: Bound) -> tuple[Tensor, Tensor]:
    """The k-th largest, which is D(k) for the variables below it, and D(k) for the variables at or above it."""
    n = len(order)
    if isinstance(k, int):
        if 0 < k < n:
            return order[k - 1], order[k]
        endless = order[0].new_full((), torch.inf)
        return (endless, endless) if k == 0 else (order[n - 1], -endless)
    rungs = order if isinstance(order, Tensor) else torch.stack(order)
    ends = torch.full_like(rungs[:1], torch.inf)
    ladder = torch.cat([ends, rungs, -ends])  # shape: (n + 2, C, B)
    place = k.expand(ladder.shape[1:])[None]
    follows = torch.where(place == 0, 0, place + 1)
    return ladder.gather(0, place)[0], ladder.gather(0, follows)[0]


def budget_messages(nu: Tensor, at_least: Bound, at_most: Bound, *, normalise: bool = True) -> Tensor:
    """Full messages of budgets: ``-inf`` exactly where no count of the others lies within the bounds.

    Args:
        nu: Shape (n, 2, C, B).
        at_least: The least number of ones.
        at_most: The greatest number of ones.
        normalise: Whether the better state of a message is 0, or keeps its value.
    """
    n = int(nu.shape[0])
    dead = (nu == -torch.inf).all(1)  # shape: (n, C, B)
    d = (nu[:, 1] - nu[:, 0]).masked_fill(dead, 0.0)
    ratio = budget_ratios(d, at_least, at_most)
    forced, barred = d == torch.inf, d == -torch.inf
    ones = forced.sum(0) - forced.long()  # among the others, as all below
    room = n - 1 - (barred.sum(0) - barred.long())
    stuck = (dead.sum(0) - dead.long()) > 0
    values = torch.stack([(-ratio).clamp(max=0), ratio.clamp(max=0)], 1)
    if not normalise:
        values = values + _best_of_others(nu, d, at_least, at_most)[:, None]
    impossible = [(ones > at_most - v) | (room < at_least - v) | stuck for v in (0, 1)]
    return values.masked_fill(torch.stack(impossible, 1), -torch.inf)


def _best_of_others(nu: Tensor, d: Tensor, at_least: Bound, at_most: Bound) -> Tensor:
    """The value of the others' best states when variable i takes whichever state suits them, shape (n, C, B)."""
    n = int(nu.shape[0])
    base = torch.where(nu[:, 0] > -torch.inf, nu[:, 0], nu[:, 1])  # a forced one is no gain over its only state
    base = base.masked_fill(base == -torch.inf, 0.0)
    finite = torch.where(d.isinf(), 0.0, d)
    order = d.sort(dim=0, descending=True).values
    zero = torch.zeros_like(d[:1])
    sums = torch.cat([zero, torch.where(order.isinf(), 0.0, order).cumsum(0), zero])  # shape: (n + 2, C, B)
    gains = (d > 0).long()
    least = torch.as_tensor(at_least, device=d.device)
    most = torch.as_tensor(at_most, device=d.device)
    count = (gains.sum(0) - gains).maximum((least - 1).clamp(min=0)).minimum(most.clamp(max=n - 1))
    ladder = torch.cat([torch.full_like(zero, torch.inf), order])
    counted = (d >= ladder.gather(0, count)) & (count > 0)
    best = torch.where(counted, sums.gather(0, count + 1) - finite, sums.gather(0, count))
    return base.sum(0) - base + best
