"""What changing one variable, or two that share a factor, does to a model's score and to its broken constraints.

All of it is evaluated for many assignments at once by gathers: nothing loops over variables or factors. A *row* is one
assignment of one model of a batch. A move of variable i by the offset o takes it to state (x_i + o) mod k_i, so a
binary variable has one move and a variable of k states has k - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import ModelBatch


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which slots of a flat list belong to each target, padded: sums and maxima over them are gathers."""

    slots: Tensor  # shape: (T, D), int64; the slot one past the last is padding

    @classmethod
    def of(cls, targets: NDArray[np.int64], count: int, device: torch.device) -> Incidence:
        """``targets[s]`` is the target of slot s, one of ``count``."""
        order = np.argsort(targets, kind="stable")
        degree = np.bincount(targets, minlength=count)
        width = int(degree.max(initial=0))
        slots = np.full((count, width), targets.size, dtype=np.int64)
        within = np.arange(targets.size) - np.repeat(np.cumsum(degree) - degree, degree)
        slots[targets[order], within] = order
        return cls(torch.from_numpy(slots).to(device))

    def sum(self, values: Tensor) -> Tensor:
        """(R, S, ...) over slots to (R, T, ...) over targets."""
        if self.slots.shape[1] == 0:
            return values.new_zeros(values.shape[0], self.slots.shape[0], *values.shape[2:])
        return self._gather(values, 0).sum(2)

    def max(self, values: Tensor, empty: float) -> Tensor:
        """As `sum`, with the maximum; ``empty`` where a target has no slot."""
        if self.slots.shape[1] == 0:
            return values.new_full((values.shape[0], self.slots.shape[0], *values.shape[2:]), empty)
        return self._gather(values, empty).amax(2)

    def _gather(self, values: Tensor, padding: float) -> Tensor:
        pad = values.new_full((values.shape[0], 1, *values.shape[2:]), padding)
        padded = torch.cat([values, pad], 1)
        picked = padded.index_select(1, self.slots.reshape(-1))
        return picked.reshape(values.shape[0], *self.slots.shape, *values.shape[2:])


@dataclass(frozen=True, eq=False)
class _Tables:
    scopes: Tensor  # shape: (C, A)
    strides: tuple[int, ...]
    finite: Tensor  # shape: (B, C, cells), -inf replaced by 0
    forbidden: Tensor | None  # shape: (B, C, cells), 1 where -inf; None where nowhere
    to_variable: Incidence
    axes: tuple[tuple[int, int], ...]  # the pairs of axes that pair moves look at
    to_pair: Incidence | None


@dataclass(frozen=True, eq=False)
class _Budgets:
    scopes: Tensor  # shape: (C, n)
    low: Tensor  # shape: (B, C)
    high: Tensor  # shape: (B, C)
    to_variable: Incidence
    to_pair: Incidence | Tensor | None  # the budgets that hold both of a pair; (C, P) of 0 and 1 where that is small

    def over_shared(self, values: Tensor) -> Tensor:
        """Sums over the budgets that hold both variables of each pair, (R, C) to (R, P)."""
        assert self.to_pair is not None
        if isinstance(self.to_pair, Tensor):
            return (values.float() @ self.to_pair).double()  # small whole numbers: exact in float32
        return self.to_pair.sum(values)


class Moves:
    """The moves of a batch's models.

    Args:
        batch: The models.
        max_pairs: Pair moves come from factors in order until there are this many; wider factors then give single
            moves only.
    """

    def __init__(self, batch: ModelBatch, max_pairs: int = 1 << 20) -> None:
        self.batch, device, n = batch, batch.device, batch.num_variables
        self.offsets = max(1, int(batch.unary.shape[2]) - 1)
        scopes = [t.scopes.cpu().numpy() for t in batch.tables] + [u.scopes.cpu().numpy() for u in batch.budgets]
        pairs, groups = _pairs(scopes, n, max_pairs)
        self.pairs = torch.from_numpy(pairs).to(device)  # shape: (P, 2)
        of_variable = np.concatenate([pairs[:, 0], pairs[:, 1]])
        self.pair_to_variable = Incidence.of(of_variable, n, device)
        self._factors = [Incidence.of(s.reshape(-1), n, device) for s in scopes]
        self._scopes = [torch.from_numpy(s).to(device) for s in scopes]
        unary = batch.unary.double()
        self._unary = unary.masked_fill(unary == -torch.inf, 0.0)
        self._unary_forbidden = (unary == -torch.inf).double()
        offset = torch.arange(1, self.offsets + 1, device=device)
        self.possible = offset < batch.cardinalities[:, None]  # shape: (N, O)
        self._tables, self._budgets = [], []
        for g, t in enumerate(batch.tables):
            values = t.values.flatten(2).double()
            bad = values == -torch.inf
            some = bool(bad.any())
            k = t.shape
            strides = tuple(int(np.prod(k[a + 1 :])) for a in range(len(k)))
            axes = tuple((a, b) for a in range(len(k)) for b in range(a + 1, len(k)))
            to_pair = Incidence.of(groups[g], len(pairs), device) if groups[g].size else None
            finite = values.masked_fill(bad, 0.0) if some else values
            flags = bad.double() if some else None
            self._tables.append(_Tables(t.scopes, strides, finite, flags, self._factors[g], axes, to_pair))
        for g, u in enumerate(batch.budgets, start=len(batch.tables)):
            shared = _shared(groups[g], len(u.scopes), len(pairs), device)
            self._budgets.append(_Budgets(u.scopes, u.at_least, u.at_most, self._factors[g], shared))

    # ---- one variable ---------------------------------------------------------------------------------------------

    def broken(self, x: Tensor, owner: Tensor) -> Tensor:
        """How much the rows break: units beyond budgets and forbidden entries met, shape (R,)."""
        total = self._unary_forbidden[owner].gather(2, x[..., None]).sum((1, 2))
        for t in self._tables:
            if t.forbidden is not None:
                total = total + _look(t.forbidden, owner, _cells(t, x)[..., None]).sum((1, 2))
        for u in self._budgets:
            ones = _pick(x, u.scopes).sum(2)
            total = total + _beyond(ones, u.low[owner], u.high[owner]).sum(1)
        return total

    def single(self, x: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """For rows x (R, N) of models ``owner`` (R,): gain in score and change of what is broken, each (R, N, O)."""
        target = self.states(x)  # shape: (R, N, O)
        gain = _change(self._unary[owner], x, target)
        broken = _change(self._unary_forbidden[owner], x, target)
        for t in self._tables:
            cell = _cells(t, x)  # shape: (R, C)
            steps = self._steps(t, x, target)  # shape: (R, C, A, O)
            moved = cell[:, :, None, None] + steps
            gain += t.to_variable.sum(self._difference(t.finite, owner, cell, moved))
            if t.forbidden is not None:
                broken += t.to_variable.sum(self._difference(t.forbidden, owner, cell, moved))
        for u in self._budgets:
            spins = _pick(x, u.scopes)  # shape: (R, C, n)
            ones, low, high = spins.sum(2), u.low[owner], u.high[owner]
            now = _beyond(ones, low, high)
            up, down = _beyond(ones + 1, low, high) - now, _beyond(ones - 1, low, high) - now
            slot = torch.where(spins == 1, down[..., None], up[..., None]).flatten(1)
            broken[:, :, 0] += u.to_variable.sum(slot)
        return gain.masked_fill_(~self.possible, -torch.inf), broken

    def states(self, x: Tensor) -> Tensor:
        """Where each move leads, (R, N, O); an impossible move stays among the variable's states."""
        offset = torch.arange(1, self.offsets + 1, device=x.device)
        return (x[..., None] + offset) % self.batch.cardinalities[:, None]

    # ---- two variables of one factor ------------------------------------------------------------------------------

    def pair(self, x: Tensor, owner: Tensor, gain: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
        """The same for pairs, (R, P, O, O): the single moves' sum and what the shared factors add to it."""
        i, j = self.pairs.unbind(1)
        gains = gain[:, i, :, None] + gain[:, j, None, :]
        breaks = broken[:, i, :, None] + broken[:, j, None, :]
        target = self.states(x)
        for t in self._tables:
            if t.to_pair is None:
                continue
            cell = _cells(t, x)
            steps = self._steps(t, x, target)
            a, b = (torch.tensor(v, device=x.device) for v in zip(*t.axes, strict=True))
            parts = cell[:, :, None, None, None], steps[:, :, a, :, None], steps[:, :, b, None, :]
            # a pair is kept as (lower, higher); where the scope has them the other way round, so have the offsets
            turned = (t.scopes[:, a] > t.scopes[:, b])[:, :, None, None]  # shape: (C, A(A-1)/2, 1, 1)
            gains += t.to_pair.sum(_interaction(t.finite, owner, *parts, turned))
            if t.forbidden is not None:
                breaks += t.to_pair.sum(_interaction(t.forbidden, owner, *parts, turned))
        for u in self._budgets:
            if u.to_pair is None:
                continue
            ones, low, high = _pick(x, u.scopes).sum(2), u.low[owner], u.high[owner]
            v = [_beyond(ones + d, low, high) for d in (-2, -1, 0, 1, 2)]
            # the second difference of what is broken, by how many of the pair's two variables are 1
            kinds = (v[4] - 2 * v[3] + v[2], 2 * v[2] - v[3] - v[1], v[0] - 2 * v[1] + v[2])
            shared = [u.over_shared(kind) for kind in kinds]  # shape: (R, P)
            both = x.index_select(1, i) + x.index_select(1, j)
            breaks[:, :, 0, 0] += torch.where(both == 0, shared[0], torch.where(both == 1, shared[1], shared[2]))
        return gains, breaks

    # ---- which moves do not meet ----------------------------------------------------------------------------------

    def near(self, strength: Tensor) -> Tensor:
        """The largest strength among a variable and all it shares a factor with, (R, N) to (R, N)."""
        best = strength
        for scopes, incidence in zip(self._scopes, self._factors, strict=True):
            top = _pick(strength, scopes).amax(2)  # shape: (R, C)
            slots = top[:, :, None].expand(-1, -1, scopes.shape[1]).flatten(1)
            best = torch.maximum(best, incidence.max(slots, -torch.inf))
        return best

    @property
    def row_size(self) -> int:
        """Entries that evaluating one row holds at once, to bound memory by."""
        size = sum(
            t.scopes.numel() * self.offsets + len(t.axes) * len(t.scopes) * self.offsets**2 for t in self._tables
        )
        size += sum(u.scopes.numel() for u in self._budgets)
        return int(size + 4 * len(self.pairs) * self.offsets**2 + self.batch.unary[0].numel())

    def _steps(self, t: _Tables, x: Tensor, target: Tensor) -> Tensor:
        """How far each move shifts a table's cell, (R, C, A, O)."""
        strides = torch.tensor(t.strides, device=x.device)
        return _pick(target - x[..., None], t.scopes) * strides[:, None]

    @staticmethod
    def _difference(values: Tensor, owner: Tensor, cell: Tensor, moved: Tensor) -> Tensor:
        now = _look(values, owner, cell[..., None])[..., None]
        return (_look(values, owner, moved) - now).flatten(1, 2)


def _pairs(
    scopes: list[NDArray[np.int64]], count: int, limit: int
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The distinct pairs that share a factor, (P, 2), and for each group the pair of each of its C·A(A-1)/2 slots."""
    keys: list[NDArray[np.int64]] = []
    taken = 0
    for s in scopes:
        a, b = np.triu_indices(s.shape[1], 1)
        taken += len(s) * len(a)
        if taken > limit:
            keys.append(np.zeros(0, dtype=np.int64))
            taken -= len(s) * len(a)
            continue
        low, high = np.minimum(s[:, a], s[:, b]), np.maximum(s[:, a], s[:, b])
        keys.append((low * count + high).reshape(-1))
    whole, place = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *keys]), return_inverse=True)
    ends = np.cumsum([k.size for k in keys])[:-1]
    pairs = np.stack([whole // max(1, count), whole % max(1, count)], 1)
    return pairs, list(np.split(place.astype(np.int64), ends)) if keys else []


def _shared(
    pair_of_slot: NDArray[np.int64], budgets: int, pairs: int, device: torch.device
) -> Incidence | Tensor | None:
    """From budgets to the pairs inside them: a matrix product where the matrix is small, else gathers."""
    if not pair_of_slot.size:
        return None
    budget = np.repeat(np.arange(budgets), pair_of_slot.size // budgets)
    if budgets * pairs <= 1 << 16:
        matrix = torch.zeros(budgets, pairs, device=device)
        matrix[torch.from_numpy(budget), torch.from_numpy(pair_of_slot)] = 1.0
        return matrix
    by_slot = Incidence.of(pair_of_slot, pairs, device)
    padded = torch.from_numpy(np.append(budget, budgets)).to(device)  # slots to budgets, padding to padding
    return Incidence(padded[by_slot.slots])


def _pick(values: Tensor, places: Tensor) -> Tensor:
    """``values[:, places]``, by the quicker of torch's two ways."""
    picked = values.index_select(1, places.reshape(-1))
    return picked.reshape(values.shape[0], *places.shape, *values.shape[2:])


def _cells(t: _Tables, x: Tensor) -> Tensor:
    strides = torch.tensor(t.strides, device=x.device)
    return (_pick(x, t.scopes) * strides).sum(2)


def _look(values: Tensor, owner: Tensor, cells: Tensor) -> Tensor:
    """Entries of (B, C, cells) at (R, C, ...) for the rows' models."""
    rest = (1,) * (cells.dim() - 2)
    c = torch.arange(values.shape[1], device=values.device).view(1, -1, *rest)
    return values[owner.view(-1, 1, *rest), c, cells]


def _interaction(values: Tensor, owner: Tensor, base: Tensor, da: Tensor, db: Tensor, turned: Tensor) -> Tensor:
    """What two moves in one table do together beyond what each does alone, (R, C·A(A-1)/2, O, O)."""
    both, one, other = (_look(values, owner, base + d) for d in (da + db, da, db))
    extra = both - one - other + _look(values, owner, base)
    if extra.shape[-1] > 1:
        extra = torch.where(turned, extra.transpose(-1, -2), extra)
    return extra.flatten(1, 2)


def _change(table: Tensor, x: Tensor, target: Tensor) -> Tensor:
    return table.gather(2, target) - table.gather(2, x[..., None])


def _beyond(ones: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return ((ones - high).clamp(min=0) + (low - ones).clamp(min=0)).double()
