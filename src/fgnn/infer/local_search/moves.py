"""What changing one variable, or two that share a factor, does to a model's score and to its broken constraints.

Many assignments are evaluated at once by gathers, without loops over variables or factors. A *row* is one assignment of
one model of a batch. Moving variable i by offset o takes it to state (x_i + o) mod k_i, so a binary variable has one
move and a variable of k states has k - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgnn.infer.counted import counters, distances, scores_by_sum
from fgnn.infer.local_search.move_index import FlatIndex, MoveIndex, OnesIndex, look, pick, strides_of
from fgnn.pgm import ModelBatch

_LEAST_GAIN = 2.0**-46  # relative to the largest entries
_EXACT = 2.0**24  # up to here float32 holds every integer
_MOST_PAIR_MOVES = 1 << 26  # of a row


class Moves:
    """The moves of a batch's models.

    Args:
        batch: The models.
        max_pairs: Factors give pair moves, group by group, as long as there are at most this many; the rest give
            single moves only.
    """

    def __init__(self, batch: ModelBatch, max_pairs: int = 1 << 20) -> None:
        counted = counters(batch)
        self.batch = batch
        max_pairs = min(max_pairs, _MOST_PAIR_MOVES // max(1, batch.unary.shape[2] - 1) ** 2)
        weights = (*(strides_of(t.shape) for t in batch.tables), *(counter.weights for _, counter in counted))
        self.index = batch.structure.derived(
            ("moves", weights, max_pairs), lambda: MoveIndex.of(batch.structure, weights, max_pairs)
        )
        self.pairs, self.offsets = self.index.pairs, len(self.index.offset)
        self._unary, self._unary_forbidden = _split(batch.unary)
        entries = [_split(t.distinct("values").flatten(2)) for t in batch.tables]
        for group, counter in counted:
            scores = scores_by_sum(group, counter)
            entries.append((_split(scores)[0], distances(scores)))
        # shape: (B or 1, C, T) each: finite values, and how far from allowed (None: 0 everywhere)
        self._entries = [
            (f, _laid_out(f, values), _laid_out(f, far))
            for f, (values, far) in zip(self.index.factors, entries, strict=True)
        ]
        sizes = [part.abs().flatten(1).amax(1) for part in (self._unary, *(e[0] for e in entries)) if part.numel()]
        # shape: (B,), the least gain of a move worth making; smaller differences are rounding
        self.least_gain = sum(sizes, self._unary.new_zeros(len(batch))) * _LEAST_GAIN

    # ---- one variable ---------------------------------------------------------------------------------------------

    def broken(self, x: Tensor, owner: Tensor) -> Tensor:
        """How far rows are from feasible, (R,): forbidden entries taken, and how far sums are from allowed ones."""
        total = self._unary_forbidden[owner].gather(2, x[..., None]).sum((1, 2))
        for f, _, far in self._entries:
            if far is not None:
                total = total + look(far, owner, f.entries(x)).sum(1)
        return total

    def gains(self, x: Tensor, y: Tensor, owner: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The scopes of each group of factors that score, and what they gain by rows y (R, N) instead of x, (R, C)."""
        return [
            (f.scopes, look(values, owner, f.entries(y)) - look(values, owner, f.entries(x)))
            for f, values, _ in self._entries
            if values is not None
        ]

    def single(self, x: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """For rows x (R, N) of models ``owner`` (R,): the gain in score and the change of `broken`, each (R, N, O)."""
        target = self.states(x)  # shape: (R, N, O)
        gain = _change(self._unary[owner], x, target)
        broken = _change(self._unary_forbidden[owner], x, target)
        for f, values, far in self._entries:
            entry, steps = f.entries(x), f.steps(x, target)
            for total, part in ((gain, values), (broken, far)):
                if part is not None:
                    change = f.changes(part, owner, entry, steps)
                    total[..., : change.shape[-1]] += change
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
        target, bits = self.states(x), x.index_select(1, i) + x.index_select(1, j)
        for f, values, far in self._entries:
            if f.to_pair is None:
                continue
            entry, steps = f.entries(x), f.steps(x, target)
            for total, part in ((gains, values), (breaks, far)):
                if part is not None:
                    extra = f.interactions(part, owner, entry, steps, bits)
                    total[..., : extra.shape[-2], : extra.shape[-1]] += extra
        return gains, breaks

    # ---- conflicts between moves ----------------------------------------------------------------------------------

    def near(self, strength: Tensor) -> Tensor:
        """The largest strength among a variable and all variables it shares a factor with, (R, N) to (R, N)."""
        best = strength
        for f in self.index.factors:
            top = pick(strength, f.scopes).amax(2)  # shape: (R, C)
            slots = top[:, :, None].expand(-1, -1, f.scopes.shape[1]).flatten(1)
            best = torch.maximum(best, f.to_variable.max(slots, -torch.inf))
        return best

    @property
    def row_size(self) -> int:
        """Entries held at once to evaluate one row, for bounding memory."""
        size = sum(
            f.scopes.numel() * self.offsets + f.pair_slots * len(f.scopes) * self.offsets**2 for f in self.index.factors
        )
        return int(size + 4 * len(self.pairs) * self.offsets**2 + self.batch.unary.shape[1:].numel())


def _split(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values with 0 for ``-inf``, and 1 where they were ``-inf``; both float64."""
    forbidden = values == -torch.inf
    return values.double().masked_fill(forbidden, 0.0), forbidden.double()


def _laid_out(f: FlatIndex | OnesIndex, values: Tensor) -> Tensor | None:
    """Values (B or 1, C, T) in the form that a group of factors reads; None if they are all 0."""
    if not bool(values.any()):
        return None
    if isinstance(f, FlatIndex):
        return values
    padded = torch.nn.functional.pad(values, (2, 2))
    # four of each counter add up to the second differences that are summed over the counters of a variable
    largest = 4.0 * float(padded.abs().max()) * f.to_variable.slots.shape[1]
    return padded.float() if largest <= _EXACT and bool((padded == padded.round()).all()) else padded


def _change(table: Tensor, x: Tensor, target: Tensor) -> Tensor:
    return table.gather(2, target) - table.gather(2, x[..., None])
