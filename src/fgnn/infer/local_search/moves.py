"""What changing one variable, or two that share a factor, does to a model's score and to its broken constraints.

Many assignments are evaluated at once by gathers, without loops over variables or factors. A *row* is one assignment of
one model of a batch. Moving variable i by offset o takes it to state (x_i + o) mod k_i, so a binary variable has one
move and a variable of k states has k - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.infer.local_search.move_index import MoveIndex, TableIndex, pick
from fgnn.pgm import ModelBatch

_LEAST_GAIN = 2.0**-46  # relative to the largest entries
_MOST_PAIR_MOVES = 1 << 26  # of a row


class Moves:
    """The moves of a batch's models.

    Args:
        batch: The models.
        max_pairs: Factors give pair moves, group by group, as long as there are at most this many; the rest give
            single moves only.
    """

    def __init__(self, batch: ModelBatch, max_pairs: int = 1 << 20) -> None:
        if batch.structured:
            names = ", ".join(dict.fromkeys(f.kind.name for f in batch.structured))
            raise ValueError(f"Expected tables and budgets for local search (got {names} factors)")
        self.batch = batch
        max_pairs = min(max_pairs, _MOST_PAIR_MOVES // max(1, batch.unary.shape[2] - 1) ** 2)
        shapes = tuple(t.shape for t in batch.tables)
        self.index = batch.structure.derived(
            ("moves", shapes, max_pairs), lambda: MoveIndex.of(batch.structure, shapes, max_pairs)
        )
        self.pairs, self.offsets = self.index.pairs, len(self.index.offset)
        self._unary, self._unary_forbidden = _split(batch.unary)
        # shape: (B or 1, C, cells) each: finite values, and 1 where -inf (None: nowhere)
        self._values: list[tuple[Tensor, Tensor | None]] = []
        for t in batch.tables:
            finite, forbidden = _split(t.distinct("values").flatten(2))
            self._values.append((finite, forbidden if bool(forbidden.any()) else None))
        parts = [self._unary, *(finite for finite, _ in self._values)]
        sizes = [part.abs().flatten(1).amax(1) for part in parts if part.numel()]
        # shape: (B,), the least gain of a move worth making; smaller differences are rounding
        self.least_gain = sum(sizes, self._unary.new_zeros(len(batch))) * _LEAST_GAIN

    # ---- one variable ---------------------------------------------------------------------------------------------

    def broken(self, x: Tensor, owner: Tensor) -> Tensor:
        """How far rows are from feasible, (R,): units beyond the budgets plus forbidden entries taken."""
        total = self._unary_forbidden[owner].gather(2, x[..., None]).sum((1, 2))
        for t, (_, forbidden) in zip(self.index.tables, self._values, strict=True):
            if forbidden is not None:
                total = total + _look(forbidden, owner, t.cells(x)[..., None]).sum((1, 2))
        for g, u in enumerate(self.index.budgets):
            total = total + _beyond(pick(x, u.scopes).sum(2), *self._bounds(g, owner)).sum(1)
        return total

    def single(self, x: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """For rows x (R, N) of models ``owner`` (R,): the gain in score and the change of `broken`, each (R, N, O)."""
        target = self.states(x)  # shape: (R, N, O)
        gain = _change(self._unary[owner], x, target)
        broken = _change(self._unary_forbidden[owner], x, target)
        for t, (finite, forbidden) in zip(self.index.tables, self._values, strict=True):
            cell = t.cells(x)[..., None]  # shape: (R, C, 1)
            moved = cell[..., None] + t.steps(target - x[..., None])  # shape: (R, C, A, O)
            gain += t.to_variable.sum(_difference(finite, owner, cell, moved))
            if forbidden is not None:
                broken += t.to_variable.sum(_difference(forbidden, owner, cell, moved))
        for g, u in enumerate(self.index.budgets):
            bits = pick(x, u.scopes)  # shape: (R, C, n)
            ones, bounds = bits.sum(2), self._bounds(g, owner)
            now = _beyond(ones, *bounds)
            up, down = _beyond(ones + 1, *bounds) - now, _beyond(ones - 1, *bounds) - now
            slot = torch.where(bits == 1, down[..., None], up[..., None]).flatten(1)
            broken[:, :, 0] += u.to_variable.sum(slot)
        return gain.masked_fill_(~self.index.possible, -torch.inf), broken

    def states(self, x: Tensor) -> Tensor:
        """The state each move leads to, (R, N, O); always one of the variable's states, even if it stays."""
        return (x[..., None] + self.index.offset) % self.batch.cardinalities[:, None]

    # ---- two variables of one factor ------------------------------------------------------------------------------

    def pair(self, x: Tensor, owner: Tensor, gain: Tensor, broken: Tensor) -> tuple[Tensor, Tensor]:
        """As `single`, for pairs, (R, P, O, O): the sum of the two single moves plus the interaction of both."""
        i, j = self.pairs.unbind(1)
        gains = gain[:, i, :, None] + gain[:, j, None, :]
        breaks = broken[:, i, :, None] + broken[:, j, None, :]
        shift = self.states(x) - x[..., None]
        for t, (finite, forbidden) in zip(self.index.tables, self._values, strict=True):
            if t.to_pair is None:
                continue
            cell, steps = t.cells(x), t.steps(shift)
            gains += t.to_pair.sum(_interaction(t, finite, owner, cell, steps))
            if forbidden is not None:
                breaks += t.to_pair.sum(_interaction(t, forbidden, owner, cell, steps))
        for g, u in enumerate(self.index.budgets):
            if u.to_pair is None:
                continue
            ones, bounds = pick(x, u.scopes).sum(2), self._bounds(g, owner)
            v = [_beyond(ones + d, *bounds) for d in (-2, -1, 0, 1, 2)]
            # second differences, by how many of the two variables are 1
            second = (v[4] - 2 * v[3] + v[2], 2 * v[2] - v[3] - v[1], v[0] - 2 * v[1] + v[2])
            zero, one, two = (u.sum_to_pairs(d) for d in second)  # shape: (R, P)
            both = x.index_select(1, i) + x.index_select(1, j)
            breaks[:, :, 0, 0] += torch.where(both == 0, zero, torch.where(both == 1, one, two))
        return gains, breaks

    # ---- conflicts between moves ----------------------------------------------------------------------------------

    def near(self, strength: Tensor) -> Tensor:
        """The largest strength among a variable and all variables it shares a factor with, (R, N) to (R, N)."""
        best = strength
        for scopes, to_variable in self.index.groups:
            top = pick(strength, scopes).amax(2)  # shape: (R, C)
            slots = top[:, :, None].expand(-1, -1, scopes.shape[1]).flatten(1)
            best = torch.maximum(best, to_variable.max(slots, -torch.inf))
        return best

    @property
    def row_size(self) -> int:
        """Entries held at once to evaluate one row, for bounding memory."""
        size = sum(
            t.scopes.numel() * self.offsets + t.axes.shape[1] * len(t.scopes) * self.offsets**2
            for t in self.index.tables
        )
        size += sum(u.scopes.numel() for u in self.index.budgets)
        return int(size + 4 * len(self.pairs) * self.offsets**2 + self.batch.unary.shape[1:].numel())

    def _bounds(self, group: int, owner: Tensor) -> tuple[Tensor, Tensor]:
        budget = self.batch.budgets[group]
        return budget.at_least[owner], budget.at_most[owner]


def _split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values with 0 for ``-inf``, and 1 where they were ``-inf``; both float64."""
    forbidden = values == -torch.inf
    return values.double().masked_fill(forbidden, 0.0), forbidden.double()


def _look(values: Tensor, owner: Tensor, cells: Tensor) -> Tensor:
    """Entries of (B or 1, C, cells) at (R, C, ...) for the models of the rows."""
    rest = (1,) * (cells.dim() - 2)
    c = torch.arange(values.shape[1], device=values.device).view(1, -1, *rest)
    return values[0][c, cells] if len(values) == 1 else values[owner.view(-1, 1, *rest), c, cells]


def _difference(values: Tensor, owner: Tensor, cell: Tensor, moved: Tensor) -> Tensor:
    """Entries at ``moved`` (R, C, A, O) minus those at ``cell`` (R, C, 1), as (R, C·A, O)."""
    return (_look(values, owner, moved) - _look(values, owner, cell)[..., None]).flatten(1, 2)


def _interaction(t: TableIndex, values: Tensor, owner: Tensor, cell: Tensor, steps: Tensor) -> Tensor:
    """What two moves in one table do together beyond the sum of each alone, (R, C·A(A-1)/2, O, O)."""
    base = cell[:, :, None, None, None]
    first, second = steps[:, :, t.axes[0], :, None], steps[:, :, t.axes[1], None, :]
    both, one, other = (_look(values, owner, base + d) for d in (first + second, first, second))
    extra = both - one - other + _look(values, owner, base)
    if extra.shape[-1] > 1:  # offsets in the order of the pair, which has the lower variable first
        extra = torch.where(t.swapped, extra.transpose(-1, -2), extra)
    return extra.flatten(1, 2)


def _change(table: Tensor, x: Tensor, target: Tensor) -> Tensor:
    return table.gather(2, target) - table.gather(2, x[..., None])


def _beyond(ones: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """By how many units counts miss their bounds."""
    return ((ones - high).clamp(min=0) + (low - ones).clamp(min=0)).double()
