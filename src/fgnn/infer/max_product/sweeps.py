"""One iteration of max-product under each schedule.

A sweep maps the messages of some models to the next ones and to each model's *change*: over all messages, the largest
span (maximum minus minimum over the states) of an undamped update. The span does not depend on how messages are
normalised, and is ``inf`` where a state has just become impossible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.max_product.numbers import Numbers, Rule, group_messages
from fgnn.infer.max_product.wiring import Group, Wiring

# Changes this close count as equal: a message passed on unchanged by a factor differs from the original by rounding.
_TIE = 1e-5

Sweep = Callable[[Numbers, Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""(numbers, messages (Q or 2Q, B), rate (B,), iteration) -> (messages, change (B,)); may overwrite its messages."""


# ---- one update -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Workspace:
    """Buffers reused by all iterations: on a CPU, allocating them costs as much as the arithmetic."""

    nu: Tensor  # shape: as the messages
    incoming: list[Tensor] | None  # shape: (height, C, B) each: views of ``nu`` by group; None if there are flags
    proposed: Tensor  # shape: (Q, B), the memory of ``nu`` if there are no flags
    outgoing: list[Tensor]  # shape: (height, C, B) each: views of ``proposed`` by group

    @classmethod
    def like(cls, wiring: Wiring, messages: Tensor) -> Workspace:
        nu = torch.empty_like(messages)
        if not wiring.full:
            views = wiring.by_group(nu)
            return cls(nu, views, nu, views)
        proposed = torch.empty_like(messages[: wiring.num_messages])
        return cls(nu, None, proposed, wiring.by_group(proposed))


def flooding_step(
    wiring: Wiring, rule: Rule, numbers: Numbers, messages: Tensor, rate: Tensor, work: Workspace | None = None
) -> tuple[Tensor, Tensor]:
    """Update all factors at once, by tensor operations whose shapes depend on the structure and B alone.

    Args:
        wiring: The structure.
        rule: The variant.
        numbers: The potentials.
        messages: Shape (Q, B), or (2Q, B) in the full form.
        rate: Shape (B,), the weight of the update in each model, 1 - damping; 0 leaves a model unchanged.
        work: Buffers. With them ``messages`` may be overwritten; without them this is a pure function.
    """
    proposed = proposals(wiring, rule, numbers, messages, work)
    if work is None or wiring.full:
        stepped, change = _blend(wiring, messages, proposed, rate)
    else:
        change = proposed.sub_(messages)
        stepped = messages.addcmul_(change, rate)
    if wiring.ratios_only:
        return stepped, change.abs_().amax(0)  # binary variables: the span is the change of the ratio
    return stepped, _changes(wiring, change).amax(0)


def proposals(wiring: Wiring, rule: Rule, numbers: Numbers, messages: Tensor, work: Workspace | None = None) -> Tensor:
    """The undamped messages of all factors, as value rows (Q, B)."""
    work = Workspace.like(wiring, messages) if work is None else work
    beliefs = wiring.beliefs(numbers.unary, messages)
    nu = torch.index_select(beliefs, 0, wiring.belief_of, out=work.nu)
    nu = nu if rule.own else nu.sub_(messages)
    incoming = wiring.by_group(wiring.values(nu)) if work.incoming is None else work.incoming
    for group, potentials, nu_c, out in zip(wiring.groups, numbers.factors, incoming, work.outgoing, strict=True):
        group_messages(group, potentials, nu_c, wiring.full, rule, out)
    return work.proposed


def _blend(wiring: Wiring, messages: Tensor, proposed: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """The damped messages, and the change of the value rows (NaN: was impossible before; inf: newly impossible)."""
    if not wiring.full:
        change = proposed - messages
        return torch.addcmul(messages, change, rate), change
    half = proposed.shape[0]
    values, flags = messages[:half], messages[half:]
    # Impossible states stay impossible, so a flag stays set, and damping never mixes a number with -inf.
    impossible = proposed == -torch.inf
    change = torch.where(impossible, torch.where(flags > 0.5, torch.nan, torch.inf), proposed - values)
    moving = rate > 0
    stepped = torch.addcmul(values, change.masked_fill(impossible, 0.0), rate).masked_fill(impossible & moving, 0.0)
    raised = torch.where(moving, torch.maximum(flags, impossible.to(flags.dtype)), flags)
    return torch.cat([stepped, raised]), change


def _changes(wiring: Wiring, change: Tensor) -> Tensor:
    """The largest span over each factor's messages: (Q, B) to (F, B)."""
    return torch.cat([_span(wiring, g, rows) for g, rows in zip(wiring.groups, wiring.by_group(change), strict=True)])


def _span(wiring: Wiring, group: Group, change: Tensor) -> Tensor:
    """The largest span over the messages of each factor of a group: (height, C, B) to (C, B)."""
    if not wiring.full and max(group.states) == 1:
        return change.abs().amax(0)  # binary variables: the span is the change of the ratio
    if min(group.states) == max(group.states) > 0:  # all axes at once
        return _spans(wiring, change.view(len(group.states), group.states[0], *change.shape[1:])).amax(0)
    spans = [change.new_zeros(1, *change.shape[1:])]
    spans += [_spans(wiring, change[rows][None]) for rows in group.axes() if rows.start < rows.stop]
    return torch.cat(spans).amax(0)


def _spans(wiring: Wiring, change: Tensor) -> Tensor:
    """The span of each message: (axes, states, C, B) to (axes, C, B)."""
    if not wiring.full:
        return change.amax(1).clamp(min=0) - change.amin(1).clamp(max=0)
    before = change.isnan()
    top, low = change.masked_fill(before, -torch.inf).amax(1), change.masked_fill(before, torch.inf).amin(1)
    # both inf: the last states have just become impossible; both as filled: none was possible before
    return torch.where(top == torch.inf, torch.inf, (top - low).clamp(min=0))


# ---- schedules ------------------------------------------------------------------------------------------------


def flooding(wiring: Wiring, rule: Rule) -> Sweep:
    """All factors read the old messages."""
    work: list[Workspace] = []

    def sweep(numbers: Numbers, messages: Tensor, rate: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        if not work or work[0].nu.shape != messages.shape:
            work[:] = [Workspace.like(wiring, messages)]
        return flooding_step(wiring, rule, numbers, messages, rate, work[0])

    return sweep


def sequential(wiring: Wiring, rule: Rule, seed: int, random: bool, deadline: float = math.inf) -> Sweep:
    """One factor after another, each reading the newest messages, in one order for all models.

    An iteration ends early at the deadline, by ``time.perf_counter``: on a large model it can take seconds.

    The order is that of the groups, or a new random one in each iteration. Factors that share no variable with any
    factor between them are updated together, which gives the same result.
    """
    device = wiring.belief_of.device
    scopes = wiring.derived("scopes", lambda: [scope for g in wiring.groups for scope in g.scopes.tolist()])
    starts = np.cumsum([0, *(len(g.scopes) for g in wiring.groups)])
    rows = [g.rows().to(device) for g in wiring.groups]
    num_variables = int(wiring.offsets.shape[0])

    def turns_of(iteration: int) -> list[NDArray[np.int64]]:
        if random:
            return turns(scopes, np.random.default_rng([seed, iteration]).permutation(len(scopes)), num_variables)
        return wiring.derived("turns", lambda: turns(scopes, np.arange(len(scopes)), num_variables))

    def updates(iteration: int) -> Iterator[tuple[int, Tensor]]:
        for together in turns_of(iteration):
            group_of = np.searchsorted(starts, together, side="right") - 1
            for g in np.unique(group_of).tolist():
                members = together[group_of == g] - starts[g]
                yield g, torch.as_tensor(members, device=device)

    def sweep(numbers: Numbers, messages: Tensor, rate: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        beliefs = wiring.beliefs(numbers.unary, messages)
        change = torch.zeros_like(rate)
        for g, factors in updates(iteration):
            if time.perf_counter() > deadline:
                return messages, torch.full_like(rate, torch.inf)
            group = wiring.groups[g]
            at = rows[g].index_select(1, factors).flatten()
            if wiring.full:
                at = torch.cat([at, at + wiring.num_messages])
            towards = wiring.belief_of[at]
            old, belief = messages.index_select(0, at), beliefs.index_select(0, towards)
            nu = wiring.values(belief if rule.own else belief - old)
            shape = (group.height, len(factors), len(rate))
            sent = group_messages(group, numbers.some(g, factors), nu.view(shape), wiring.full, rule)
            new, moved = _blend(wiring, old, sent.flatten(0, 1), rate)
            messages.index_copy_(0, at, new)
            # Factors updated together share no variable, so every belief row is written once.
            beliefs.index_copy_(0, towards, belief.add_(new.sub_(old)))
            change = torch.maximum(change, _span(wiring, group, moved.view(shape)).amax(0))
        return messages, change

    return sweep


def turns(scopes: list[list[int]], order: NDArray[np.int64], num_variables: int) -> list[NDArray[np.int64]]:
    """Split an order of the factors into turns whose members share no variable, without changing the result."""
    last = [0] * num_variables
    turn = np.zeros(len(scopes), dtype=np.int64)
    for c in order.tolist():
        turn[c] = following = 1 + max([last[i] for i in scopes[c]])
        for i in scopes[c]:
            last[i] = following
    by_turn = np.argsort(turn, kind="stable")
    cuts = np.cumsum(np.bincount(turn, minlength=1))
    return [by_turn[a:b] for a, b in pairwise(cuts.tolist())]


def residual(wiring: Wiring, rule: Rule) -> Sweep:
    """Largest changes first, separately in each model.

    A round updates, in each model, every factor whose change is the largest among the factors it shares a variable
    with. That includes the largest of all, and no two neighbours except for ties. The number of rounds in an iteration
    is the largest degree of a variable: the fewest in which every factor can be updated.
    """
    variables = torch.cat([g.scopes.t().flatten() for g in wiring.groups])  # shape: (E,)
    count = int(wiring.offsets.shape[0])
    rounds = int(torch.bincount(variables).max())
    starts = np.cumsum([0, *(len(g.scopes) for g in wiring.groups)]).tolist()
    spans = list(zip(pairwise(starts), wiring.groups, strict=True))
    factor_of_row = torch.cat([torch.arange(a, b, device=variables.device).repeat(g.height) for (a, b), g in spans])

    def local_maxima(changes: Tensor) -> Tensor:  # shape: (F, B) to (F, B), bool
        by_edge = torch.cat([changes[a:b].repeat(g.scopes.shape[1], 1) for (a, b), g in spans])
        at = variables[:, None].expand_as(by_edge)
        top = changes.new_zeros(count, changes.shape[1]).scatter_reduce_(0, at, by_edge, "amax")
        chosen = []
        for (a, b), g in spans:
            rival = top.index_select(0, g.scopes.t().flatten()).view(*g.scopes.t().shape, -1).amax(0)
            chosen.append(changes[a:b] >= rival * (1 - _TIE))
        return torch.cat(chosen)

    def sweep(numbers: Numbers, messages: Tensor, rate: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        for _ in range(rounds):
            proposed = proposals(wiring, rule, numbers, messages)
            _, moved = _blend(wiring, messages, proposed, rate)
            changes = _changes(wiring, moved)
            chosen = local_maxima(changes).index_select(0, factor_of_row)
            messages, _ = _blend(wiring, messages, proposed, rate * chosen)
        return messages, changes.amax(0)

    return sweep


def reweighted(wiring: Wiring, rule: Rule, appearance: Tensor) -> Sweep:
    r"""All factors at once, for beliefs that count a message by its factor's appearance probability :math:`\rho_c`.

    Messages are stored as :math:`\rho_c m_{c \to i}`, so that beliefs are their sums. A factor reads
    :math:`\nu_{i \to c} = b_i - m_{c \to i}`; its potentials must be :math:`\theta_c / \rho_c`.

    Args:
        wiring: The structure.
        rule: The semiring.
        appearance: ρ of the factor of every message row.  # shape: (Q,)
    """
    share = appearance[:, None]

    def sweep(numbers: Numbers, messages: Tensor, rate: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        nu = wiring.beliefs(numbers.unary, messages).index_select(0, wiring.belief_of)
        # A state that any factor excludes is impossible for all, so flags are not taken out again.
        nu[: len(share)] -= messages[: len(share)] / share
        incoming = wiring.by_group(wiring.values(nu))
        sent = [
            group_messages(group, potentials, nu_c, wiring.full, rule).flatten(0, 1)
            for group, potentials, nu_c in zip(wiring.groups, numbers.factors, incoming, strict=True)
        ]
        stepped, change = _blend(wiring, messages, torch.cat(sent) * share, rate)
        return stepped, _changes(wiring, change).amax(0)

    return sweep
