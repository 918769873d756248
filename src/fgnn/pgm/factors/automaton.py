r"""Factors that a finite automaton can score by reading their variables one after another.

After the first t variables the automaton is in state :math:`q_t = \delta_t(q_{t-1}, x_t)`; the log-potential is
:math:`\theta[q_n]`, or :math:`-\infty` if the automaton got stuck. Sums over joint states become sums over paths:

.. math::
    \alpha_t(q) &= \max_{q', s : \delta_t(q', s) = q} \alpha_{t-1}(q') + \nu_t(s), \\
    \beta_{t-1}(q) &= \max_s \nu_t(s) + \beta_t(\delta_t(q, s)), \qquad \beta_n = \theta, \\
    m_{c \to t}(s) &= \max_q \alpha_{t-1}(q) + \beta_t(\delta_t(q, s))

and the same with log-sum-exp, so all n messages take O(n · states · cardinality).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm.factors.gadget import FORBIDDEN, FREE, Gadget, LocalTable, entries_of
from fgnn.pgm.factors.kind import Kind, Shape

_SMALL_TABLE = 64  # joint states up to which a table is simpler than auxiliary variables
_LOCAL_TABLE = 1 << 12  # the same for methods that change one variable at a time
_MOST_STATES = 1 << 20  # of an automaton, over all positions
_NOTHING = -1e30  # the log of an empty sum, where gradients are needed

Steps = tuple[NDArray[np.int64], ...]  # by position: the next state, shape (Q_{t-1}, k_t), -1: stuck; Q_0 = 1


class AutomatonKind(Kind):
    """A kind whose factors are automata: `steps` and ``potentials`` say it all."""

    @abstractmethod
    def steps(self, shape: Shape) -> Steps:
        """The transitions δ_1, ..., δ_n; state 0 is the first. The potentials have one entry per final state."""

    def score(self, shape: Shape, x: Tensor, theta: Tensor) -> Tensor:
        state = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
        stuck = torch.zeros_like(state, dtype=torch.bool)
        for step, symbol in zip(_compiled(self, shape, x.device), x.unbind(-1), strict=True):
            state = step.following.flatten()[state * step.following.shape[1] + symbol]
            stuck |= state < 0
            state = state.clamp(min=0)
        theta = theta.expand(*state.shape, theta.shape[-1])
        return theta.gather(-1, state[..., None]).squeeze(-1).double().masked_fill(stuck, -torch.inf)

    def messages(self, theta: Tensor, nu: Sequence[Tensor], *, total: bool) -> list[Tensor]:
        steps = _compiled(self, tuple(len(message) for message in nu), theta.device)
        after = [theta.expand(-1, *nu[0].shape[1:])]  # β_n, β_{n-1}, ..., β_1
        for step, message in zip(reversed(steps[1:]), reversed(nu[1:]), strict=True):
            after.append(_reduce(step.reached(after[-1]) + message, 1, total))
        before = torch.zeros_like(after[0][:1])  # α_0, shape: (Q, C, B)
        sent = []
        for step, message in zip(steps, nu, strict=True):
            sent.append(_reduce(before[:, None] + step.reached(after.pop()), 0, total))
            if after:
                before = step.collect((before[:, None] + message).flatten(0, 1), total)
        return sent

    def best(self, shape: Shape, theta: Tensor, nu: Tensor) -> tuple[Tensor, Tensor]:
        from fgnn.pgm.factors.best_paths import best_paths

        value, x = nu.new_empty(len(nu)), torch.zeros(nu.shape[:2], dtype=torch.int64)
        given = theta.contiguous().numpy(), nu.contiguous().numpy()
        best_paths(*_flat(self, shape), np.array(shape), *given, value.numpy(), x.numpy())
        return value, x

    def local_gadget(self, shape: Shape) -> Gadget:
        """One table, unless it would be large."""
        return self._table(shape) if prod(shape) <= _LOCAL_TABLE else self.gadget(shape)

    def _table(self, shape: Shape) -> Gadget:
        return Gadget((LocalTable(tuple(range(len(shape))), entries_of(_final_states(automaton_steps(self, shape)))),))

    def gadget(self, shape: Shape) -> Gadget:
        """A chain of tables over auxiliary variables, which are the states; the first state is the first variable."""
        steps, n = automaton_steps(self, shape), len(shape)
        if prod(shape) <= _SMALL_TABLE or n <= 2:
            return self._table(shape)
        tables: list[LocalTable] = []
        sizes = [len(step) for step in steps[1:]]  # Q_1, ..., Q_{n-1}
        following = steps[1][np.maximum(steps[0][0], 0)]  # from the state of the first variable, shape: (k_1, k_2)
        following = np.where(steps[0][0][:, None] < 0, -1, following)
        previous = 0  # the variable that holds the state
        for t in range(1, n - 1):
            entries = np.where(following[..., None] == np.arange(sizes[t]), FREE, FORBIDDEN)
            tables.append(LocalTable((previous, t, n + t - 1), entries))
            previous, following = n + t - 1, steps[t + 1]
        tables.append(LocalTable((previous, n - 1), entries_of(following)))

        def complete(x: Tensor) -> Tensor:
            states, state = [], torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
            for step, symbol in zip(_compiled(self, shape, x.device)[:-1], x.unbind(-1), strict=False):
                state = step.following.flatten()[state * step.following.shape[1] + symbol].clamp(min=0)
                states.append(state)
            return torch.stack(states[1:], -1)

        return Gadget(tuple(tables), cardinalities=tuple(sizes[1:]), complete=complete)


@lru_cache(maxsize=256)
def automaton_steps(kind: AutomatonKind, shape: Shape) -> Steps:
    """The transitions of a kind, computed once."""
    steps = kind.steps(shape)
    states = sum(len(step) for step in steps)
    if states > _MOST_STATES:
        raise ValueError(f"Expected a {kind.name} factor of at most {_MOST_STATES:,} states (got {states:,})")
    return steps


@lru_cache(maxsize=256)
def _flat(kind: AutomatonKind, shape: Shape) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The transitions as one array, where each position begins, and the states before each and after the last."""
    steps = automaton_steps(kind, shape)
    begin = np.cumsum([0, *(step.size for step in steps[:-1])])
    return np.concatenate([step.ravel() for step in steps]), begin, np.array(_sizes(steps))


def _sizes(steps: Steps) -> list[int]:
    """The number of states before each position, and after the last."""
    return [len(step) for step in steps] + [int(steps[-1].max(initial=0)) + 1]


def _final_states(steps: Steps) -> NDArray[np.int64]:
    """The last state of every joint state of the variables, -1 if stuck.  # shape: (k_1, ..., k_n)"""
    state: NDArray[np.int64] = steps[0][0]
    for step in steps[1:]:
        state = np.where(state[..., None] < 0, -1, step[np.maximum(state, 0)])
    return state


@dataclass(frozen=True, eq=False)
class _Step:
    """One transition as index tensors."""

    following: Tensor  # shape: (Q, k), -1: stuck
    row: Tensor  # shape: (Q·k,), as above plus 1
    arrivals: tuple[tuple[Tensor, Tensor], ...]  # states (m,) and the pairs (q, s) that lead there, (m, D), padded
    states: int  # Q', after the step

    @classmethod
    def of(cls, step: NDArray[np.int64], states: int, device: torch.device) -> _Step:
        flat = step.reshape(-1)
        order = np.argsort(flat, kind="stable")
        counts = np.bincount(flat[flat >= 0], minlength=states)
        order = order[len(flat) - counts.sum() :]
        starts = np.cumsum(counts) - counts
        arrivals = []
        # States with about as many arrivals share a table of them, padded to a power of two.
        widths = np.where(counts > 0, 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64), 0)
        for width in np.unique(widths[widths > 0]).tolist():
            members = np.flatnonzero(widths == width)
            place = np.arange(width)
            inside = place < counts[members, None]
            pairs = np.where(inside, order[np.where(inside, starts[members, None] + place, 0)], len(flat))
            arrivals.append(tuple(torch.from_numpy(a).to(device) for a in (members, pairs)))
        numbers = [torch.from_numpy(np.array(a)).to(device) for a in (step, flat + 1)]
        return cls(numbers[0], numbers[1], tuple((a, b) for a, b in arrivals), states)

    def reached(self, after: Tensor) -> Tensor:
        """β at the state that each pair leads to: (Q', C, B) to (Q, k, C, B)."""
        padded = torch.cat([torch.full_like(after[:1], -torch.inf), after])
        return padded.index_select(0, self.row).view(*self.following.shape, *after.shape[1:])

    def collect(self, pairs: Tensor, total: bool) -> Tensor:
        """Maxima or sums over the pairs that lead to each state: (Q·k, C, B) to (Q', C, B)."""
        padded = torch.cat([pairs, torch.full_like(pairs[:1], -torch.inf)])
        out = pairs.new_full((self.states, *pairs.shape[1:]), -torch.inf)
        for members, sources in self.arrivals:
            terms = padded.index_select(0, sources.flatten()).view(*sources.shape, *pairs.shape[1:])
            out[members] = terms[:, 0] if sources.shape[1] == 1 else _reduce(terms, 1, total)
        return out


@lru_cache(maxsize=256)
def _compiled(kind: AutomatonKind, shape: Shape, device: torch.device) -> tuple[_Step, ...]:
    steps = automaton_steps(kind, shape)
    return tuple(_Step.of(step, states, device) for step, states in zip(steps, _sizes(steps)[1:], strict=True))


def _reduce(values: Tensor, axis: int, total: bool) -> Tensor:
    if total and values.requires_grad:  # the gradient is undefined if all terms are -inf
        values = values.clamp_min(_NOTHING)
    return values.logsumexp(axis) if total else values.amax(axis)


def minimised(steps: Sequence[NDArray[np.int64]]) -> Steps:
    """An equal automaton with as few states as possible: states from which all continuations agree become one.

    States that can only get stuck are removed. Final states are kept apart.
    """
    merged: list[NDArray[np.int64]] = []
    name: NDArray[np.int64] | None = None  # of the states after the step: its number in the result, -1: stuck
    for step in reversed(steps):
        renamed = step if name is None else np.where(step < 0, -1, name[np.maximum(step, 0)])
        rows, inverse = np.unique(renamed, axis=0, return_inverse=True)
        dead = (rows < 0).all(1)
        number = np.cumsum(~dead) - 1
        number[dead] = -1
        name = number[inverse.reshape(-1)]
        merged.append(rows[~dead])
    result = merged[::-1]
    if not len(result[0]):  # nothing is allowed
        return tuple(np.full((1, step.shape[1]), -1, dtype=np.int64) for step in steps)
    return tuple(result)
