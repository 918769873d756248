"""One iteration of max-product under each schedule.

A sweep takes the messages of some models and gives the next ones with each model's *change*: the largest, over all
messages, span (maximum less minimum over the states) of what an undamped update would add. The span is the same however
messages are normalised, and ``inf`` where a state has just been found impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.max_product.wiring import Group, Numbers, Wiring, blocks, group_messages

# Changes this close are equal: what passes through a factor unchanged differs from what came in by rounding alone.
_TIE = 1e-5

Sweep = Callable[[Numbers, Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""(numbers, messages (Q or 2Q, B), rate (B,), iteration) -> (messages, change (B,)); the messages given are used up."""


@dataclass(frozen=True)
class Rule:
    """What a factor reads from a variable, and whether the best state of a message is set to 0.

    ``own=False`` leaves out of the belief what the factor itself sent, as in the textbook; ``own=True`` reads the whole
    belief, as eq. (max_product) is printed.
    """

    own: bool = False
    normalise: bool = True


# ---- one update -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Workspace:
    """Memory that iterations use again: to ask for it anew costs a CPU as much as the arithmetic."""

    nu: Tensor  # shape: as the messages
    incoming: list[Tensor] | None  # shape: (height, C, B) each: the part of ``nu`` that is a group's; None: has flags
    proposed: Tensor  # shape: (Q, B), the same memory as ``nu`` where no flags stand between
    outgoing: list[Tensor]  # shape: (height, C, B) each: the part of ``proposed`` that is a group's

    @classmethod
    def like(cls, wiring: Wiring, messages: Tensor) -> Workspace:
        nu = torch.empty_like(messages)
        if not wiring.full:
            parts = wiring.by_group(nu)
            return cls(nu, parts, nu, parts)
        proposed = torch.empty_like(messages[: wiring.num_messages])
        return cls(nu, None, proposed, wiring.by_group(proposed))


def flooding_step(
    wiring: Wiring, rule: Rule, numbers: Numbers, messages: Tensor, rate: Tensor, work: Workspace | None = None
) -> tuple[Tensor, Tensor]:
    """All factors at once: tensor operations only, whose shapes depend on the structure and B alone.

    Args:
        wiring: The structure.
        rule: The variant.
        numbers: The potentials.
        messages: Shape (Q, B), or (2Q, B) in the full form.
        rate: Shape (B,): how far each model goes towards its update, 1 - damping; 0 holds a model still.
        work: Overwritten, as ``messages`` may then be; without it the step is a pure function.
    """
    proposed = proposals(wiring, rule, numbers, messages, work)
    if work is None or wiring.full:
        stepped, change = _blend(wiring, messages, proposed, rate)
    else:
        change = proposed.sub_(messages)
        stepped = messages.addcmul_(change, rate)
    if wiring.ratios_only:
        return stepped, change.abs_().amax(0)  # binary variables: the span is the ratio's change, in one reduction
    return stepped, _changes(wiring, change).amax(0)


def proposals(wiring: Wiring, rule: Rule, numbers: Numbers, messages: Tensor, work: Workspace | None = None) -> Tensor:
    """What every factor would send now, as value rows (Q, B)."""
    work = Workspace.like(wiring, messages) if work is None else work
    beliefs = wiring.beliefs(numbers.unary, messages)
    nu = torch.index_select(beliefs, 0, wiring.belief_of, out=work.nu)
    nu = nu if rule.own else nu.sub_(messages)
    incoming = wiring.by_group(wiring.values(nu)) if work.incoming is None else work.incoming
    for group, potentials, come, out in zip(wiring.groups, numbers.factors, incoming, work.outgoing, strict=True):
        group_messages(group, potentials, come, wiring.full, rule.normalise, out)
    return work.proposed


def _blend(wiring: Wiring, messages: Tensor, proposed: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """The damped messages, and the change of the value rows (NaN: impossible and known so; inf: newly so)."""
    if not wiring.full:
        change = proposed - messages
        return torch.addcmul(messages, change, rate), change
    half = proposed.shape[0]
    values, flags = messages[:half], messages[half:]
    # What is possible only shrinks, so a flag once set stays, and damping never mixes a number with -inf.
    banned = proposed == -torch.inf
    change = torch.where(banned, torch.where(flags > 0.5, torch.nan, torch.inf), proposed - values)
    moving = rate > 0
    stepped = torch.addcmul(values, change.masked_fill(banned, 0.0), rate).masked_fill(banned & moving, 0.0)
    raised = torch.where(moving, torch.maximum(flags, banned.to(flags.dtype)), flags)
    return torch.cat([stepped, raised]), change


def _changes(wiring: Wiring, change: Tensor) -> Tensor:
    """The largest span over each factor's messages: (Q, B) to (F, B)."""
    parts = zip(wiring.groups, wiring.by_group(change), strict=True)
    return torch.cat([_span(wiring, g, part) for g, part in parts])


def _span(wiring: Wiring, group: Group, change: Tensor) -> Tensor:
    """The largest span over a factor's messages: (height, C, B) to (C, B)."""
    if not wiring.full and max(group.states) == 1:
        return change.abs().amax(0)  # binary variables: the span is the ratio's change
    spans = [change.new_zeros(change.shape[1:])]
    for rows in blocks(group):
        if rows.start == rows.stop:
            continue
        part = change[rows]
        if wiring.full:
            gone = part.isnan()
            top, low = part.masked_fill(gone, -torch.inf).amax(0), part.masked_fill(gone, torch.inf).amin(0)
            # both inf: all that is left was lost now; both as filled: nothing was left before
            spans.append(torch.where(top == torch.inf, torch.inf, (top - low).clamp(min=0)))
        else:
            spans.append(part.amax(0).clamp(min=0) - part.amin(0).clamp(max=0))
    return torch.stack(spans).amax(0)


# ---- schedules ------------------------------------------------------------------------------------------------


def flooding(wiring: Wiring, rule: Rule) -> Sweep:
    """Every factor reads the old messages."""
    work: list[Workspace] = []

    def sweep(numbers: Numbers, messages: Tensor, rate: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        if not work or work[0].nu.shape != messages.shape:
            work[:] = [Workspace.like(wiring, messages)]
        return flooding_step(wiring, rule, numbers, messages, rate, work[0])

    return sweep


def sequential(wiring: Wiring, rule: Rule, seed: int, random: bool) -> Sweep:
    """Factor by factor, each reading the newest messages, in one order for all models.

    The order is that of the groups, or drawn anew each iteration. Factors whose turn does not depend on each other go
    together: a factor waits only for those before it that share a variable with it, so the result is that of the
    order, one by one.
    """
    device = wiring.belief_of.device
    scopes = [scope for g in wiring.groups for scope in g.scopes.tolist()]
    starts = np.cumsum([0, *(len(g.scopes) for g in wiring.groups)])
    rows = [torch.arange(g.span.start, g.span.stop, device=device).view(g.height, len(g.scopes)) for g in wiring.groups]
    num_variables = int(wiring.offsets.shape[0])
    in_order = [] if random else turns(scopes, np.arange(len(scopes)), num_variables)

    def updates(iteration: int) -> Iterator[tuple[int, Tensor]]:
        drawn = np.random.default_rng([seed, iteration]).permutation(len(scopes)) if random else None
        for together in in_order if drawn is None else turns(scopes, drawn, num_variables):
            group_of = np.searchsorted(starts, together, side="right") - 1
            for g in np.unique(group_of).tolist():
                members = together[group_of == g] - starts[g]
                yield g, torch.as_tensor(members, device=device)

    def sweep(numbers: Numbers, messages: Tensor, rate: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        beliefs = wiring.beliefs(numbers.unary, messages)
        change = torch.zeros_like(rate)
        for g, factors in updates(iteration):
            group = wiring.groups[g]
            at = rows[g].index_select(1, factors).flatten()
            if wiring.full:
                at = torch.cat([at, at + wiring.num_messages])
            towards = wiring.belief_of[at]
            old, belief = messages.index_select(0, at), beliefs.index_select(0, towards)
            nu = wiring.values(belief if rule.own else belief - old)
            shape = (group.height, len(factors), len(rate))
            sent = group_messages(group, numbers.some(g, factors), nu.view(shape), wiring.full, rule.normalise)
            new, moved = _blend(wiring, old, sent.flatten(0, 1), rate)
            messages.index_copy_(0, at, new)
            # factors that go together share no variable, so every belief row is written once
            beliefs.index_copy_(0, towards, belief.add_(new.sub_(old)))
            change = torch.maximum(change, _span(wiring, group, moved.view(shape)).amax(0))
        return messages, change

    return sweep


def turns(scopes: list[list[int]], order: NDArray[np.int64], num_variables: int) -> list[NDArray[np.int64]]:
    """Factors in the order, gathered into turns whose members share no variable, with the same result."""
    last = [0] * num_variables
    turn = np.zeros(len(scopes), dtype=np.int64)
    for c in order.tolist():
        scope = scopes[c]
        mine = 1 + max([last[i] for i in scope])
        turn[c] = mine
        for i in scope:
            last[i] = mine
    by_turn = np.argsort(turn, kind="stable")
    cuts = np.cumsum(np.bincount(turn, minlength=1))
    return [by_turn[a:b] for a, b in pairwise(cuts.tolist())]


def residual(wiring: Wiring, rule: Rule) -> Sweep:
    """Where a message would change most, first: each model by its own changes.

    A round updates, in each model, every factor whose change is the largest among the factors it shares a variable
    with; the largest of all is among them, and no two neighbours are (but for ties). An iteration has as many rounds
    as the busiest variable has factors, the least in which every factor can have its turn.
    """
    variables = torch.cat([g.scopes.t().flatten() for g in wiring.groups])  # shape: (E,)
    count = int(wiring.offsets.shape[0])
    rounds = int(torch.bincount(variables).max())
    starts = np.cumsum([0, *(len(g.scopes) for g in wiring.groups)]).tolist()
    factor_of_row = torch.cat(
        [
            torch.arange(a, b, device=variables.device).repeat(g.height)
            for (a, b), g in zip(pairwise(starts), wiring.groups, strict=True)
        ]
    )

    def local_maxima(changes: Tensor) -> Tensor:  # shape: (F, B) to (F, B), bool
        parts = list(zip(pairwise(starts), wiring.groups, strict=True))
        by_edge = torch.cat([changes[a:b].repeat(g.scopes.shape[1], 1) for (a, b), g in parts])
        at = variables[:, None].expand_as(by_edge)
        top = changes.new_zeros(count, changes.shape[1]).scatter_reduce_(0, at, by_edge, "amax")
        chosen = []
        for (a, b), g in parts:
            rival = top.index_select(0, g.scopes.t().flatten()).view(*g.scopes.t().shape, -1).amax(0)
            chosen.append(changes[a:b] >= rival * (1 - _TIE))
        return torch.cat(chosen)

    def sweep(numbers: Numbers, messages: Tensor, rate: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        for _ in range(rounds):
            proposed = proposals(wiring, rule, numbers, messages)
            _, moved = _blend(wiring, messages, proposed, rate)
            changes = torch.cat(
                [
                    _span(wiring, g, moved[g.span].view(g.height, len(g.scopes), messages.shape[1]))
                    for g in wiring.groups
                ]
            )
            chosen = local_maxima(changes).index_select(0, factor_of_row)
            messages, _ = _blend(wiring, messages, proposed, rate * chosen)
        return messages, changes.amax(0)

    return sweep
