"""Exact max-marginals of chains: the best score with each variable fixed to each of its states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.exact.candidates import rows_first
from fgnn.pgm import ModelBatch
from fgnn.pgm.factors import Counter
from fgnn.pgm.group_batches import FactorBatch

# Longest reach of a factor: each variable takes tables of 2^reach states per model.
_MOST_REACH = 16
# Entries of a slice of models on the CPU, which fits the cache of a core.
_CPU_SLICE = 1 << 15


@dataclass(frozen=True, eq=False)
class Piece:
    """A factor over the last ``reach`` variables, up to the one it is added at; the earliest is the highest bit."""

    group: int
    index: int
    reach: int
    rows: Tensor  # shape: (2^reach,), the entry of the table, or the sum of the counter


@dataclass(frozen=True, eq=False)
class Band:
    """The factors of binary models by the last variable of their scope, in order of the variables."""

    reach: int  # number of consecutive variables that the widest factor spans
    tables: tuple[tuple[Piece, ...], ...]  # by the last variable of the scope
    counters: tuple[tuple[Piece, ...], ...]

    @classmethod
    def of(cls, batch: ModelBatch) -> Band:
        """Compile the structure of a batch.

        Raises:
            ValueError: A variable is not binary, or a factor spans more than 16 consecutive variables.
        """
        if bool((batch.cardinalities != 2).any()):
            raise ValueError(f"Expected binary variables (got {sorted(set(batch.cardinalities.tolist()))} states)")
        if len(batch.tables) + len(batch.counted) < len(batch.factors):
            raise ValueError("Expected tables and factors that count (got others)")

        def pieces(groups: Sequence[FactorBatch]) -> tuple[tuple[Piece, ...], ...]:
            by_last: list[list[Piece]] = [[] for _ in range(batch.num_variables)]
            for group, factors in enumerate(groups):
                for index, scope in enumerate(factors.scopes.tolist()):
                    last, reach = max(scope), max(scope) - min(scope) + 1
                    if reach > _MOST_REACH:
                        raise ValueError(f"Expected factors within {_MOST_REACH} neighbours (got one over {reach})")
                    bits = torch.arange(2**reach)[:, None] >> (last - torch.tensor(scope)) & 1  # shape: (2^reach, A)
                    rows = _entries(factors.counter, bits).to(batch.device)
                    by_last[last].append(Piece(group, index, reach, rows))
            return tuple(map(tuple, by_last))

        tables, counters = pieces(batch.tables), pieces(batch.counted)
        widest = max([p.reach for at in (*tables, *counters) for p in at], default=1)
        return cls(max(2, widest), tables, counters)


def _entries(counter: Counter | None, bits: Tensor) -> Tensor:
    """The entry of a table, or the sum of a counter, at joint states (S, A) of binary variables.  # shape: (S,)"""
    if counter is not None:
        return torch.from_numpy(counter.sums(bits.numpy()))
    return (bits * 2 ** torch.arange(bits.shape[1] - 1, -1, -1)).sum(1)


def max_marginals(batch: ModelBatch, band: Band | None = None, *, dtype: torch.dtype = torch.float64) -> Tensor:
    r"""The best score with :math:`x_i` fixed, :math:`m_i(k) = \max_{x : x_i = k} \theta(x)`, for all i and k at once.

    One forward and one backward pass over the :math:`2^{w-1}` joint states of the last w - 1 variables, where the
    widest factor spans w variables:

    .. math::
        \alpha_t(x_{t-w+2}, \dots, x_t) &= \max_{x_{t-w+1}} \alpha_{t-1} + \theta_t, \\
        \beta_{t-1}(x_{t-w+1}, \dots, x_{t-1}) &= \max_{x_t} \beta_t + \theta_t, \\
        m_i &= \max_{x \setminus x_i} \alpha_t + \beta_t

    Control flow depends only on the structure: once that is compiled, there is no host synchronisation.

    Args:
        batch: Models of binary variables whose factors each span a few consecutive variables, such as chains.
        band: Their structure, if compiled already.
        dtype: Of the sums.

    Returns:
        m, shape (B, N, 2), in ``dtype``; ``-inf`` where no feasible assignment has that state.
    """
    # A structure does not know the weights of sums.
    counters = tuple(group.counter for group in batch.counted)
    band = band or batch.structure.derived(("band", counters), lambda: Band.of(batch))
    if not batch.unary.numel():
        return batch.unary.to(dtype)
    size = max(1, _CPU_SLICE >> band.reach) if batch.device.type == "cpu" else len(batch)
    return torch.cat(
        [_both_passes(batch.select(slice(at, at + size)), band, dtype) for at in range(0, len(batch), size)]
    )


def gaps(batch: ModelBatch, band: Band | None = None) -> Tensor:
    r"""The advantage of one over zero, :math:`d_i = m_i(1) - m_i(0)`: positive if the best assignment has a one, near 0
    if both states are almost equally good.

    Returns:
        d, shape (B, N), float32; infinite where one of the states is infeasible, 0 where both are.
    """
    marginals = max_marginals(batch, band)
    difference = (marginals[..., 1] - marginals[..., 0]).float()
    return torch.where(difference.isnan(), 0.0, difference).contiguous()


# ---- the passes; the axes of tensors are states, then models ------------------------------------------------


@torch.no_grad()
def _both_passes(batch: ModelBatch, band: Band, dtype: torch.dtype) -> Tensor:
    n, held = batch.num_variables, band.reach - 1
    terms = _Terms(batch, band, dtype)
    # variables before the first are zeros
    alpha = torch.full((2**held, len(batch)), -torch.inf, dtype=dtype, device=batch.device)
    alpha[0] = 0.0
    # The states after variable t include variables t - held + 1, ..., t, so every held-th t covers all variables.
    covering = range(n - 1, -1, -held)
    alphas: dict[int, Tensor] = {}
    for t in range(n):
        joint = terms.forward(alpha, t)  # shape: (2^held, 2, B), the earliest variable is the highest bit
        alpha = joint.view(2, 2**held, -1).amax(0)
        if t in covering:
            alphas[t] = alpha
    beta = torch.zeros_like(alpha)
    marginals: list[Tensor] = []  # shape: (2, B) each, last variable first
    for t in range(n - 1, -1, -1):
        if t in covering:
            total = alphas.pop(t) + beta
            for bit in range(min(held, t + 1)):
                marginals.append(total.view(2 ** (held - 1 - bit), 2, 2**bit, -1).amax((0, 2)))
        if t > covering[-1]:
            beta = terms.back(beta, t).amax(1)
    return torch.stack(marginals[::-1]).permute(2, 0, 1) + batch.constant.to(dtype)[:, None, None]


class _Terms:
    """The numbers of the factors that end at each variable."""

    def __init__(self, batch: ModelBatch, band: Band, dtype: torch.dtype) -> None:
        self.band, self.models = band, len(batch)
        self._unary, *self._tables = rows_first(batch, dtype)
        self._bounds, self._sums = [], []
        for group in batch.counted:
            bounds = group.bounds()
            self._bounds.append(None if bounds is None else tuple(b.T.contiguous() for b in bounds))
            self._sums.append(None if bounds is not None else group.by_sum(dtype).permute(1, 2, 0).contiguous())

    def forward(self, alpha: Tensor, t: int) -> Tensor:
        """Add the factors that end at t to alpha (2^held, B), over the variables before t; returns (2^held, 2, B)."""
        small, reach = self._local(t)
        before = alpha.view(-1, 2 ** (reach - 1), 1, self.models)
        return self._counted(before + small.view(1, -1, 2, small.shape[-1]), t)

    def back(self, beta: Tensor, t: int) -> Tensor:
        """Add the factors that end at t to beta (2^held, B), over the variables up to t; returns (2^held, 2, B)."""
        small, reach = self._local(t)
        if reach == self.band.reach:
            return self._counted(beta.view(1, -1, self.models) + small.view(2, -1, small.shape[-1]), t)
        return self._counted(beta.view(1, -1, 2**reach, self.models).expand(2, -1, -1, -1) + small, t)

    def _local(self, t: int) -> tuple[Tensor, int]:
        """The sum of the unary and the tables that end at t, (2^reach, B), and its reach."""
        small, reach = self._unary[t], 1
        for piece in sorted(self.band.tables[t], key=lambda p: p.reach):
            values = self._tables[piece.group][piece.index].index_select(0, piece.rows)
            small = (small.view(1, 2**reach, -1) + values.view(-1, 2**reach, values.shape[-1])).flatten(0, 1)
            reach = piece.reach
        return small, reach

    def _counted(self, joint: Tensor, t: int) -> Tensor:
        """Add the counters that end at t, in place."""
        for piece in self.band.counters[t]:
            states = joint.view(-1, 2**piece.reach, self.models)
            if (bounds := self._bounds[piece.group]) is not None:
                lower, upper = bounds
                sums = piece.rows[:, None]
                broken = (sums < lower[piece.index]) | (sums > upper[piece.index])  # shape: (2^reach, B or 1)
                states.masked_fill_(broken, -torch.inf)
            elif (values := self._sums[piece.group]) is not None:
                states.add_(values[piece.index].index_select(0, piece.rows))
        return joint.view(-1, 2, self.models)
