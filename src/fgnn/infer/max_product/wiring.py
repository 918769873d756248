"""Where messages lie: the structure of a batch compiled to rows, and its numbers laid out beside them.

All messages of all factor groups are one tensor of rows by models, and so are the beliefs, so that one iteration is a
few large operations whatever the mix of groups, arities and cardinalities, without padding. The model is the
last axis: rows are contiguous over the models, and for one large model over its factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.messages import Bound, PairClamp, budget_messages, budget_ratios, table_messages
from fgnn.pgm import ModelBatch

# What a group of factors holds: tables (k_1, ..., k_A, C, B or 1), binary pairs, or (at_least, at_most).
Potentials = Tensor | PairClamp | tuple[Bound, Bound]

# Padding of the table that gathers each variable's messages, as a multiple of the messages it gathers.
_MOST_PADDING = 4


@dataclass(frozen=True, eq=False)
class Group:
    """Factors of one shape. Their messages fill consecutive rows: axis, then stored state, then factor."""

    scopes: Tensor  # shape: (C, A), int64
    states: tuple[int, ...]  # stored per axis: the cardinality, or one less for ratios
    start: int  # the first row
    budget: bool

    @property
    def height(self) -> int:
        """Rows per factor."""
        return sum(self.states)

    @property
    def span(self) -> slice:
        return slice(self.start, self.start + self.height * len(self.scopes))


@dataclass(frozen=True, eq=False)
class Wiring:
    """The structure of a batch as rows.

    In the full form there are as many *flag* rows again, after the value rows, that count what forbids a state: a state
    that is impossible has value 0 and a flag, so that leaving one message out of a sum is a subtraction for both,
    with no ``inf - inf``.
    """

    full: bool
    ratios_only: bool  # every message is one number, the log-ratio of a binary variable
    cardinalities: tuple[int, ...] | int  # one number where all variables have the same
    offsets: Tensor  # shape: (N,), each variable's first belief row
    num_beliefs: int  # P, without flags
    num_messages: int  # Q, without flags
    groups: tuple[Group, ...]
    belief_of: Tensor  # shape: (Q,) or (2Q,) with flags: the belief row each message row adds to
    incident: Tensor | None  # shape: (P or 2P, D): the message rows that add to a belief row, padded; on CUDA only

    @classmethod
    def of(cls, batch: ModelBatch, *, full: bool) -> Wiring:
        """Compile the structure; ``full`` where states can be impossible or messages are not to be normalised."""
        cards = batch.cardinalities
        kept = cards if full else cards - 1
        offsets = kept.cumsum(0) - kept
        groups: list[Group] = []
        belief_rows: list[Tensor] = []
        at = 0
        shapes = [(t.scopes, t.shape, False) for t in batch.tables]
        shapes += [(u.scopes, (2,) * int(u.scopes.shape[1]), True) for u in batch.budgets]
        for scopes, shape, budget in shapes:
            states = tuple(k if full else k - 1 for k in shape)
            groups.append(Group(scopes, states, at, budget))
            for a, count in enumerate(states):
                steps = torch.arange(count, device=cards.device)
                belief_rows.append((offsets[scopes[:, a]] + steps[:, None]).flatten())
            at += groups[-1].height * len(scopes)
        rows = torch.cat(belief_rows) if belief_rows else torch.zeros(0, dtype=torch.int64, device=cards.device)
        num_beliefs = int(kept.sum())
        if full:
            rows = torch.cat([rows, rows + num_beliefs])
        sizes = cards.tolist()
        return cls(
            full=full,
            ratios_only=not full and all(states == 1 for g in groups for states in g.states),
            cardinalities=sizes[0] if sizes and min(sizes) == max(sizes) else tuple(sizes),
            offsets=offsets,
            num_beliefs=num_beliefs,
            num_messages=at,
            groups=tuple(groups),
            belief_of=rows,
            incident=incident_rows(rows, num_beliefs * (2 if full else 1)) if rows.is_cuda else None,
        )

    @property
    def num_factors(self) -> int:
        return sum(len(g.scopes) for g in self.groups)

    def by_group(self, rows: Tensor) -> list[Tensor]:
        """Value rows (Q, B) as each group's (height, C, B), without a copy."""
        return [rows[g.span].view(g.height, len(g.scopes), rows.shape[1]) for g in self.groups]

    def beliefs(self, unary: Tensor, messages: Tensor) -> Tensor:
        """b_i = θ_i + Σ_c m_{c→i}, over all rows."""
        if self.incident is None:
            return unary.index_add(0, self.belief_of, messages)
        # Atomic additions would make the rounding, and so a tie, differ from run to run.
        padded = torch.cat([messages, messages.new_zeros(1, messages.shape[1])])
        parts = padded.index_select(0, self.incident.flatten())
        return unary + parts.view(*self.incident.shape, messages.shape[1]).sum(1)

    def values(self, rows: Tensor) -> Tensor:
        """Value rows with ``-inf`` where a flag stands: (2R, B) to (R, B) in the full form, as they are for ratios."""
        if not self.full:
            return rows
        half = rows.shape[0] // 2
        return rows[:half].masked_fill(rows[half:] > 0.5, -torch.inf)

    def padded_beliefs(self, beliefs: Tensor, normalise: bool = True) -> Tensor:
        """Belief rows as (B, N, K), each variable's best state at 0 if ``normalise``, padded with ``-inf``."""
        values = self.values(beliefs)
        cards, count = self.cardinalities, self.offsets.shape[0]
        first = 0 if self.full else 1
        widest = cards if isinstance(cards, int) else max(cards, default=1)
        dense = values.new_full((widest, count, values.shape[1]), -torch.inf)
        if not self.full:
            dense[0] = 0.0
        if isinstance(cards, int):
            dense[first:] = values.view(count, widest - first, values.shape[1]).transpose(0, 1)
        else:
            sizes = torch.tensor(cards, device=values.device)
            for s in range(first, widest):
                have = sizes > s
                dense[s, have] = values[self.offsets[have] + s - first]
        if normalise:
            best = dense.amax(0)
            dense = dense - best.masked_fill(best == -torch.inf, 0.0)
        return dense.permute(2, 1, 0)


def incident_rows(rows: Tensor, count: int) -> Tensor | None:
    """For each of ``count`` belief rows the message rows that add to it, padded; None where that is mostly padding."""
    order = rows.argsort(stable=True)
    degree = torch.bincount(rows, minlength=count)
    widest = int(degree.max()) if rows.numel() else 0
    if widest * count > _MOST_PADDING * rows.numel() or rows.numel() == 0:
        return None
    table = torch.full((count, widest), rows.numel(), device=rows.device)
    place = torch.arange(rows.numel(), device=rows.device) - (degree.cumsum(0) - degree)[rows[order]]
    table[rows[order], place] = order
    return table


@dataclass(frozen=True, eq=False)
class Numbers:
    """The potentials of some models, laid out for a `Wiring`: models last, and of length 1 where all share them."""

    unary: Tensor  # shape: (P, B) or (2P, B) with flags
    factors: tuple[Potentials, ...]  # by group

    @classmethod
    def of(cls, batch: ModelBatch, wiring: Wiring) -> Numbers:
        flat = batch.unary[:, batch.state_mask] if wiring.full else _ratios(batch)
        unary = flat.t().contiguous()  # shape: (P, B)
        if wiring.full:
            banned = unary == -torch.inf
            unary = torch.cat([unary.masked_fill(banned, 0.0), banned.to(unary.dtype)])
        factors: list[Potentials] = []
        for t in batch.tables:
            theta = _last(t.distinct("values"))
            factors.append(PairClamp.of(theta) if t.shape == (2, 2) and not wiring.full else theta)
        factors += [(_bound(u.distinct("at_least")), _bound(u.distinct("at_most"))) for u in batch.budgets]
        return cls(unary, tuple(factors))

    def columns(self, which: Tensor) -> Numbers:
        """The numbers of the models at an index tensor."""

        def pick(tensor: Tensor) -> Tensor:
            return tensor if tensor.shape[-1] == 1 else tensor.index_select(-1, which)

        return Numbers(self.unary.index_select(1, which), tuple(_each(f, pick) for f in self.factors))

    def some(self, g: int, factors: Tensor) -> Potentials:
        """The potentials of some factors of a group."""
        return _each(self.factors[g], lambda tensor: tensor.index_select(-2, factors))


def _each(potentials: Potentials, change: Callable[[Tensor], Tensor]) -> Potentials:
    if isinstance(potentials, Tensor):
        return change(potentials)
    if isinstance(potentials, PairClamp):
        return potentials.map(change)
    low, high = potentials
    return low if isinstance(low, int) else change(low), high if isinstance(high, int) else change(high)


def group_messages(
    group: Group, potentials: Potentials, nu: Tensor, full: bool, normalise: bool, out: Tensor | None = None
) -> Tensor:
    """What the factors of a group (or some of them) send, as value rows: (height, C, B) in and out."""
    out = torch.empty_like(nu) if out is None else out
    if isinstance(potentials, PairClamp):
        return potentials.ratios(nu, out)
    if isinstance(potentials, Tensor):
        sent = table_messages(potentials, list(torch.split(nu, list(group.states))), full=full)
        return torch.cat([_normalised(m) for m in sent] if full and normalise else sent, out=out)
    if not full:
        return budget_ratios(nu, *potentials, out=out)
    by_state = nu.view(len(group.states), 2, *nu.shape[1:])
    return out.copy_(budget_messages(by_state, *potentials, normalise=normalise).flatten(0, 1))


def _normalised(message: Tensor) -> Tensor:
    best = message.amax(0)
    return message - best.masked_fill(best == -torch.inf, 0.0)


def blocks(group: Group) -> Iterator[slice]:
    """The rows of each axis of a group, relative to its first."""
    at = 0
    for states in group.states:
        yield slice(at, at + states)
        at += states


def can_forbid(batch: ModelBatch) -> bool:
    """Whether any state can ever be impossible: a ``-inf`` somewhere, or a budget that leaves no choice."""
    if bool((batch.unary.isneginf() & batch.state_mask).any()):
        return True
    if any(bool(t.distinct("values").isneginf().any()) for t in batch.tables):
        return True
    return any(bool(((u.at_most == 0) | (u.at_least == u.scopes.shape[1])).any()) for u in batch.budgets)


def _ratios(batch: ModelBatch) -> Tensor:
    against_first = batch.unary[..., 1:] - batch.unary[..., :1]
    return against_first[:, batch.state_mask[:, 1:]]


def _last(values: Tensor) -> Tensor:
    """(B, C, k_1, ..., k_A) to (k_1, ..., k_A, C, B)."""
    return values.permute(*range(2, values.dim()), 1, 0).contiguous()


def _bound(bound: Tensor) -> Bound:
    if bound.numel() and bool((bound == bound.flatten()[0]).all()):
        return int(bound.flatten()[0])
    return bound.t().contiguous()
