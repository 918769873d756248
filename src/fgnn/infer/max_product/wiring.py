"""Message passing compiled from a structure: where each message and belief is stored.

All messages of all factor groups are the rows of one tensor, with the models as columns, and so are the beliefs. An
iteration is then a few large operations without padding, whatever the mix of groups, arities and cardinalities. Rows
are contiguous over the models, or over the factors of a single large model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.graph import Structure, padded_width, slots_by_target
from fgnn.graph.derived import Derived
from fgnn.pgm import ModelBatch
from fgnn.pgm.group_batches import Form

Out = Tensor | None  # where to write a message, if not to a new tensor

# Largest size of a padded table of message rows, as a multiple of the rows in it.
_MOST_PADDING = 4


@dataclass(frozen=True, eq=False)
class Group:
    """Factors of one shape. Their messages fill consecutive rows: axis, then stored state, then factor."""

    scopes: Tensor  # shape: (C, A), int64
    states: tuple[int, ...]  # stored per axis: the cardinality, or one less for ratios
    start: int  # the first row
    form: Form

    @property
    def height(self) -> int:
        """Rows per factor."""
        return sum(self.states)

    @property
    def span(self) -> slice:
        """The rows of all factors."""
        return slice(self.start, self.start + self.height * len(self.scopes))

    def rows(self) -> Tensor:
        """The row numbers, on the CPU.  # shape: (height, C)"""
        return torch.arange(self.span.start, self.span.stop).view(self.height, len(self.scopes))

    def axes(self) -> Iterator[slice]:
        """The rows of each axis, relative to the first row."""
        at = 0
        for states in self.states:
            yield slice(at, at + states)
            at += states


@dataclass(frozen=True, eq=False)
class Wiring(Derived):
    """The rows of all messages and beliefs of a structure.

    In the full form the value rows are followed by as many *flag* rows, which count the reasons why a state is
    impossible. An impossible state has value 0 and a positive flag, so leaving one message out of a sum is a
    subtraction for both, without ``inf - inf``.
    """

    full: bool
    ratios_only: bool  # every message is one number, the log-ratio of a binary variable
    cardinalities: tuple[int, ...] | int  # a single number if all variables have the same
    offsets: Tensor  # shape: (N,), each variable's first belief row
    num_beliefs: int  # P, without flags
    num_messages: int  # Q, without flags
    groups: tuple[Group, ...]
    belief_of: Tensor  # shape: (Q,) or (2Q,) with flags: the belief row each message row is added to
    incident: Tensor | None  # shape: (P or 2P, D): the message rows of each belief row, padded; on CUDA only

    @classmethod
    def of(cls, batch: ModelBatch, *, full: bool) -> Wiring:
        """The wiring of a batch, compiled once for its structure.

        ``full`` is needed if states can be impossible or messages must not be normalised.
        """
        structure = batch.structure
        forms = [(f.form, f.shape) for f in batch.factors]
        return structure.derived(("wiring", full, tuple(forms)), lambda: cls._compile(structure, forms, full))

    @classmethod
    def _compile(cls, structure: Structure, forms: list[tuple[Form, tuple[int, ...]]], full: bool) -> Wiring:
        cards = structure.cardinalities
        assert cards is not None
        stored = cards if full else cards - 1
        offsets = stored.cumsum(0) - stored
        groups: list[Group] = []
        belief_rows = [cards.new_zeros(0)]
        num_messages = 0
        for (form, shape), scopes in zip(forms, (g.scopes for g in structure.groups.values()), strict=True):
            states = tuple(k if full else k - 1 for k in shape)
            groups.append(Group(scopes, states, num_messages, form))
            for axis, count in enumerate(states):
                steps = torch.arange(count, device=cards.device)
                belief_rows.append((offsets[scopes[:, axis]] + steps[:, None]).flatten())
            num_messages += groups[-1].height * len(scopes)
        belief_of, num_beliefs = torch.cat(belief_rows), int(stored.sum())
        if full:
            belief_of = torch.cat([belief_of, belief_of + num_beliefs])
        sizes = cards.tolist()
        return cls(
            full=full,
            ratios_only=not full and all(states == 1 for g in groups for states in g.states),
            cardinalities=sizes[0] if sizes and min(sizes) == max(sizes) else tuple(sizes),
            offsets=offsets,
            num_beliefs=num_beliefs,
            num_messages=num_messages,
            groups=tuple(groups),
            belief_of=belief_of,
            incident=incident_rows(belief_of, num_beliefs * (2 if full else 1)) if belief_of.is_cuda else None,
        )

    def by_group(self, rows: Tensor) -> list[Tensor]:
        """Views of value rows (Q, B) as each group's (height, C, B)."""
        return [rows[g.span].view(g.height, len(g.scopes), rows.shape[1]) for g in self.groups]

    def beliefs(self, unary: Tensor, messages: Tensor) -> Tensor:
        """b_i = θ_i + Σ_c m_{c→i}, over all rows."""
        if self.incident is None:
            return unary.index_add(0, self.belief_of, messages)
        # Atomic additions would make rounding, and thereby ties, differ from run to run.
        padded = torch.cat([messages, messages.new_zeros(1, messages.shape[1])])
        terms = padded.index_select(0, self.incident.flatten())
        return unary + terms.view(*self.incident.shape, messages.shape[1]).sum(1)

    def values(self, rows: Tensor, forbidden: float = -torch.inf) -> Tensor:
        """Value rows, ``forbidden`` where flagged: (2R, B) to (R, B) in the full form; ratios are unchanged."""
        if not self.full:
            return rows
        half = rows.shape[0] // 2
        return rows[:half].masked_fill(rows[half:] > 0.5, forbidden)

    def padded_beliefs(self, unary: Tensor, messages: Tensor, normalise: bool = True) -> Tensor:
        """The beliefs as (B, N, K), padded with ``-inf``; ``normalise`` sets each variable's best state to 0."""
        values = self.values(self.beliefs(unary, messages))
        cards, count = self.cardinalities, self.offsets.shape[0]
        first = 0 if self.full else 1
        widest = cards if isinstance(cards, int) else max(cards, default=1)
        dense = values.new_full((widest, count, values.shape[1]), -torch.inf)
        if not self.full:
            dense[0] = 0.0
        if isinstance(cards, int):
            dense[first:] = values.view(count, widest - first, values.shape[1]).transpose(0, 1)
        else:
            # all rows at once: one variable may have a million states
            rows = torch.tensor(cards, device=values.device) - first
            variable = torch.arange(count, device=values.device).repeat_interleave(rows)
            start = (rows.cumsum(0) - rows).repeat_interleave(rows)
            state = torch.arange(len(variable), device=values.device) - start
            dense[state + first, variable] = values[self.offsets[variable] + state]
        if normalise:
            dense = subtract_best(dense)
        return dense.permute(2, 1, 0)


def incident_rows(belief_of: Tensor, count: int) -> Tensor | None:
    """The message rows of each of ``count`` belief rows, padded; None if there are none or most would be padding."""
    rows = belief_of.numel()
    if rows == 0 or padded_width(belief_of, count) * count > _MOST_PADDING * rows:
        return None
    return slots_by_target(belief_of, count)


def filled(out: Out, message: Tensor) -> Tensor:
    """The message itself, or copied to where it belongs."""
    return message if out is None else out.copy_(message)


def subtract_best(message: Tensor) -> Tensor:
    """Shift messages so that the best state along the first axis is 0."""
    best = message.amax(0)
    return message - best.masked_fill(best == -torch.inf, 0.0)
