"""Lemma lossless_agg and Prop. 4: sums of features through a max aggregation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import VariableToFactor
from fgnn.theory.parts import linear_of, message_of, table_of


class SumThroughMax(nn.Module):
    r"""Prop. 4 (feature_sum): :math:`[\sum_i x_{ij}]_{j=1}^n = Q\, [\max_i \sum_j x_{ij} w_{ijk}]_{k=1}^{mn}`.

    One factor connects m variables whose features are the rows of X. Its VF layer has M = identity and, for the i-th
    variable, the matrix :math:`W_i` that writes the features into the i-th of m slots and 0 into the others. The
    maximum is then lossless (Lemma lossless_agg), and a linear layer adds the slots.

    The lemma needs :math:`x_{ij} \ge 0`: a negative entry is below the 0 that other variables write into its slot.
    With ``signed``, M splits every entry into the non-negative :math:`\mathrm{relu}(x)` and
    :math:`\mathrm{relu}(-x)`, and the linear layer subtracts them, which works for any X. ``sum_through_max`` is the
    same class.

    Args:
        rows: m, the number of vectors.
        columns: n, their length.
        signed: Whether entries may be negative; they are then split into two non-negative parts.

    Example:
        >>> net = sum_through_max(2, 3)
        >>> net(torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]).double()).detach()
        tensor([11., 22., 33.], dtype=torch.float64)

    Attributes:
        w: The constant tensor W, shape (m, n, mn); with ``signed`` (m, 2n, 2mn).
        q: The constant matrix Q, shape (n, mn); with ``signed`` (n, 2mn).
    """

    def __init__(self, rows: int, columns: int, *, signed: bool = False) -> None:
        super().__init__()
        if rows < 1 or columns < 1:
            raise ValueError(f"Expected a matrix with at least one entry (got {rows} x {columns})")
        self.rows, self.columns, self.signed = rows, columns, signed
        eye = torch.eye(columns, dtype=torch.float64)
        parts = torch.cat([eye, -eye]) if signed else eye  # shape: (n', n)
        width = len(parts)
        slots = torch.eye(rows * width, dtype=torch.float64).reshape(rows, width, rows * width)
        self.register_buffer("w", slots)
        self.register_buffer("q", parts.T.repeat(1, rows))
        message = message_of([(parts, parts.new_zeros(width))], 0, final_relu=signed)
        self.gather = VariableToFactor(message, table_of(slots.transpose(1, 2)))
        self.sum = linear_of(self.get_buffer("q"))
        scope = torch.arange(rows)[None]
        self._incidence = FactorGraph(rows, {"all": FactorGroup(scope)}).incidence("all")

    def slots(self, x: Tensor) -> Tensor:
        """The concatenated rows of X, after the maximum.  # shape: (..., m, n) -> (..., mn)"""
        if tuple(x.shape[-2:]) != (self.rows, self.columns):
            raise ValueError(f"Expected matrices of {self.rows} x {self.columns} (got shape {tuple(x.shape)})")
        if not self.signed and bool((x < 0).any()):
            raise ValueError(f"Expected non-negative entries for Lemma lossless_agg, or signed=True (got {x.min():g})")
        flat = x.reshape(-1, self.rows, self.columns)
        slots: Tensor = self.gather(self._incidence, flat, None, torch.arange(self.rows))  # shape: (B, 1, mn)
        return slots.reshape(*x.shape[:-2], -1)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the rows, (..., m, n) -> (..., n)."""
        out: Tensor = self.sum(self.slots(x))
        return out

    def extra_repr(self) -> str:
        return f"rows={self.rows}, columns={self.columns}, signed={self.signed}"


sum_through_max = SumThroughMax
