"""The structure of local search: which variables and pairs of variables each factor scores."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fgnn.graph import PaddedIncidence, Structure
from fgnn.infer.counted import Weights
from fgnn.infer.map_tensors import map_tensors
from fgnn.pgm.factors.counter import padded

# Counters times pairs up to which counters are summed over pairs by a matrix product rather than by gathers.
_SMALL_MATRIX = 1 << 16


@dataclass(frozen=True, eq=False)
class FlatIndex:
    """Factors of one shape whose entry is found by a sum over their variables: tables by strides, counters by weights.

    Their pairs of positions are numbered (0, 1), (0, 2), ..., (A - 2, A - 1).
    """

    scopes: Tensor  # shape: (C, A)
    weights: Tensor  # shape: (A, K), what each state adds
    strides: Tensor | None  # shape: (A,), if state s adds s times the stride to what state 0 adds
    # The two positions of each pair, and whether its second variable has the lower number; none without pair moves.
    axes: Tensor  # shape: (2, A(A-1)/2)
    swapped: Tensor  # shape: (C, A(A-1)/2, 1, 1)
    to_variable: PaddedIncidence
    to_pair: PaddedIncidence | None  # None: these factors take no part in pair moves

    @property
    def pair_slots(self) -> int:
        return int(self.axes.shape[1])

    def entries(self, x: Tensor) -> Tensor:
        """Which entry assignments select, (R, N) to (R, C)."""
        states = pick(x, self.scopes)
        if self.strides is not None:
            return (states * self.strides).sum(2) + self.weights[:, 0].sum()
        return self._weights(states).sum(2)

    def steps(self, x: Tensor, target: Tensor) -> Tensor:
        """How far moves to ``target`` (R, N, O) shift the entry of each factor.  # shape: (R, C, A, O)"""
        if self.strides is not None:
            return pick(target - x[..., None], self.scopes) * self.strides[:, None]
        return self._weights(pick(target, self.scopes)) - self._weights(pick(x, self.scopes))[..., None]

    def changes(self, values: Tensor, owner: Tensor, entry: Tensor, steps: Tensor) -> Tensor:
        """What moves add to the values (B or 1, C, T), summed over the factors of each variable.  # shape: (R, N, O)"""
        now = look(values, owner, entry[..., None])[..., None]
        moved = look(values, owner, entry[..., None, None] + steps)
        return self.to_variable.sum((moved - now).flatten(1, 2))

    def interactions(self, values: Tensor, owner: Tensor, entry: Tensor, steps: Tensor, bits: Tensor) -> Tensor:
        """What two moves add together beyond the sum of each alone, for every pair.  # shape: (R, P, O, O)"""
        assert self.to_pair is not None
        base = entry[:, :, None, None, None]
        first, second = steps[:, :, self.axes[0], :, None], steps[:, :, self.axes[1], None, :]
        both, one, other = (look(values, owner, base + d) for d in (first + second, first, second))
        extra = both - one - other + look(values, owner, base)
        if extra.shape[-1] > 1:  # offsets in the order of the pair, which has the lower variable first
            extra = torch.where(self.swapped, extra.transpose(-1, -2), extra)
        return self.to_pair.sum(extra.flatten(1, 2))

    def _weights(self, states: Tensor) -> Tensor:
        """The weights of states (R, C, A, ...)."""
        position = torch.arange(len(self.weights), device=states.device).view(-1, *(1,) * (states.dim() - 3))
        return self.weights[position, states]


@dataclass(frozen=True, eq=False)
class OnesIndex:
    """Counters of ones over the same number of variables: a move changes the sum by 1, whichever variable it is.

    Values have two entries of padding at each end, so that no sum near an end needs care.
    """

    scopes: Tensor  # shape: (C, n)
    to_variable: PaddedIncidence
    # counters that hold both variables of a pair: gathers, or a 0/1 matrix (C, P); None: no part in pair moves
    to_pair: PaddedIncidence | Tensor | None

    @property
    def pair_slots(self) -> int:
        return 0

    def entries(self, x: Tensor) -> Tensor:
        return pick(x, self.scopes).sum(2) + 2

    def steps(self, x: Tensor, target: Tensor) -> Tensor:
        """Which variables are 1.  # shape: (R, C, n)"""
        return pick(x, self.scopes)

    def changes(self, values: Tensor, owner: Tensor, entry: Tensor, steps: Tensor) -> Tensor:
        now = look(values, owner, entry)
        up, down = (look(values, owner, entry + d) - now for d in (1, -1))
        slot = torch.where(steps == 1, down[..., None], up[..., None]).flatten(1)
        return self.to_variable.sum(slot)[..., None]

    def interactions(self, values: Tensor, owner: Tensor, entry: Tensor, steps: Tensor, bits: Tensor) -> Tensor:
        """As of `FlatIndex`; ``bits`` (R, P) is how many of the two variables are 1."""
        v = [look(values, owner, entry + d) for d in (-2, -1, 0, 1, 2)]
        # second differences, by how many of the two variables are 1
        second = (v[4] - 2 * v[3] + v[2], 2 * v[2] - v[3] - v[1], v[0] - 2 * v[1] + v[2])
        zero, one, two = map(self._sum_to_pairs, second)  # shape: (R, P)
        return torch.where(bits == 0, zero, torch.where(bits == 1, one, two))[..., None, None]

    def _sum_to_pairs(self, values: Tensor) -> Tensor:
        """Sum over the counters that hold both variables of each pair, (R, C) to (R, P)."""
        assert self.to_pair is not None
        if isinstance(self.to_pair, Tensor):
            return (values @ self.to_pair.to(values)).double()
        return self.to_pair.sum(values).double()


@dataclass(frozen=True, eq=False)
class MoveIndex:
    """Index tensors of single and pair moves, compiled from the structure alone."""

    pairs: Tensor  # shape: (P, 2), variables that share a factor, the lower number first
    pair_to_variable: PaddedIncidence  # from the first variables of all pairs, then the second ones
    offset: Tensor  # shape: (O,), 1, 2, ..., O
    possible: Tensor  # shape: (N, O), whether a variable has that many states
    factors: tuple[FlatIndex | OnesIndex, ...]  # of every group

    @classmethod
    def of(cls, structure: Structure, weights: tuple[Weights, ...], max_pairs: int) -> MoveIndex:
        """Compile a structure.

        Args:
            structure: Groups of tables and counters.
            weights: By group, what each state of each variable adds to the place of an entry.
            max_pairs: Groups of factors give pair moves, in order, as long as there are at most this many.
        """
        n, cards = structure.num_variables, structure.cardinalities
        assert cards is not None
        scopes = [group.scopes.cpu() for group in structure.groups.values()]
        pairs, pair_of_slot = _pairs(scopes, n, max_pairs)
        factors = [
            _factors(s, PaddedIncidence.of(s.reshape(-1), n), w, slots, len(pairs))
            for s, w, slots in zip(scopes, weights, pair_of_slot, strict=True)
        ]
        offset = torch.arange(1, max(2, int(cards.max()) if n else 1))
        possible = offset < cards.cpu()[:, None]
        pair_to_variable = PaddedIncidence.of(pairs.t().reshape(-1), n)
        index = cls(pairs, pair_to_variable, offset, possible, tuple(factors))
        return map_tensors(index, lambda t: t.to(structure.device))


def strides_of(shape: tuple[int, ...]) -> Weights:
    """What each state of each variable adds to the place of a cell in a flattened table."""
    return tuple(tuple(s * prod(shape[a + 1 :]) for s in range(k)) for a, k in enumerate(shape))


def _factors(
    scopes: Tensor, to_variable: PaddedIncidence, weights: Weights, pair_of_slot: Tensor, pairs: int
) -> FlatIndex | OnesIndex:
    """One group, in the cheapest form that it has."""
    if all(of_states == (0, 1) for of_states in weights):
        return OnesIndex(scopes, to_variable, _counters_of_pairs(pair_of_slot, len(scopes), pairs))
    widest = max(map(len, weights))
    table = torch.from_numpy(padded(weights, widest))
    slopes = [w[1] - w[0] if len(w) > 1 else 0 for w in weights]
    even = all(s == w[0] + t * slope for w, slope in zip(weights, slopes, strict=True) for t, s in enumerate(w))
    size = len(weights) if len(pair_of_slot) else 0
    first, second = axes = torch.triu_indices(size, size, 1)
    swapped = (scopes[:, first] > scopes[:, second])[:, :, None, None]
    to_pair = PaddedIncidence.of(pair_of_slot, pairs) if len(pair_of_slot) else None
    return FlatIndex(scopes, table, torch.tensor(slopes) if even else None, axes, swapped, to_variable, to_pair)


def pick(values: Tensor, places: Tensor) -> Tensor:
    """``values[:, places]``, through the faster ``index_select``."""
    picked = values.index_select(1, places.reshape(-1))
    return picked.reshape(values.shape[0], *places.shape, *values.shape[2:])


def look(values: Tensor, owner: Tensor, entries: Tensor) -> Tensor:
    """Entries of (B or 1, C, T) at (R, C, ...) for the models of the rows."""
    rest = (1,) * (entries.dim() - 2)
    c = torch.arange(values.shape[1], device=values.device).view(1, -1, *rest)
    return values[0][c, entries] if len(values) == 1 else values[owner.view(-1, 1, *rest), c, entries]


def _pairs(scopes: list[Tensor], n: int, limit: int) -> tuple[Tensor, list[Tensor]]:
    """The distinct pairs that share a factor, (P, 2), and the pair of each of the C·A(A-1)/2 slots of every group."""
    keys: list[Tensor] = []
    total = 0
    for s in scopes:
        slots = len(s) * s.shape[1] * (s.shape[1] - 1) // 2
        if total + slots > limit:
            keys.append(s.new_zeros(0))
            continue
        total += slots
        first, second = torch.triu_indices(s.shape[1], s.shape[1], 1)
        low, high = torch.minimum(s[:, first], s[:, second]), torch.maximum(s[:, first], s[:, second])
        keys.append((low * n + high).reshape(-1))
    distinct, pair_of_slot = torch.unique(torch.cat([torch.zeros(0, dtype=torch.int64), *keys]), return_inverse=True)
    pairs = torch.stack([distinct // max(1, n), distinct % max(1, n)], 1)
    return pairs, list(torch.split(pair_of_slot, [len(k) for k in keys]))


def _counters_of_pairs(pair_of_slot: Tensor, counters: int, pairs: int) -> PaddedIncidence | Tensor | None:
    """From counters to the pairs inside them: as a 0/1 matrix if that is small, else as gathers."""
    if not len(pair_of_slot):
        return None
    counter_of_slot = torch.arange(counters).repeat_interleave(len(pair_of_slot) // counters)
    if counters * pairs <= _SMALL_MATRIX:
        matrix = torch.zeros(counters, pairs)
        matrix[counter_of_slot, pair_of_slot] = 1.0
        return matrix
    slots = PaddedIncidence.of(pair_of_slot, pairs).slots
    return PaddedIncidence(torch.cat([counter_of_slot, torch.tensor([counters])])[slots])
