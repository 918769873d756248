"""Lemma lossless_agg and Prop. 4: sums of features through an aggregation that only takes maxima."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import VariableToFactor
from fgnn.theory.parts import linear_of, message_of, table_of


class SumThroughMax(nn.Module):
    r"""Prop. 4 (feature_sum): :math:`[\sum_i x_{ij}]_{j=1}^n = Q\, [\max_i \sum_j x_{ij} w_{ijk}]_{k=1}^{mn}`.

    One factor over m variables whose features are the rows of X. Its VF layer has M = identity, and for the i-th
    variable the matrix :math:`W_i` that writes the features into the i-th of m slots and 0 into the others; the
    maximum then loses nothing (Lemma lossless_agg), and a linear layer adds the slots.

    The lemma needs :math:`x_{ij} \ge 0`: a negative entry loses against the 0 that others write into its slot. With
    ``signed``, M splits every entry into :math:`\mathrm{relu}(x)` and :math:`\mathrm{relu}(-x)`, which are both
    non-negative, and the linear layer puts them together again; any X will do.

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
        """The rows of X side by side, after the maximum.  # shape: (..., m, n) -> (..., mn)"""
        if tuple(x.shape[-2:]) != (self.rows, self.columns):
            raise ValueError(f"Expected matrices of {self.rows} x {self.columns} (got shape {tuple(x.shape)})")
        if not self.signed and bool((x < 0).any()):
            raise ValueError("Expected non-negative entries, which Lemma lossless_agg needs; or signed=True (got less)")
        flat = x.reshape(-1, self.rows, self.columns)
        made: Tensor = self.gather(self._incidence, flat, None, torch.arange(self.rows))  # shape: (B, 1, mn)
        return made.reshape(*x.shape[:-2], -1)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the rows, (..., m, n) -> (..., n)."""
        out: Tensor = self.sum(self.slots(x))
        return out

    def extra_repr(self) -> str:
        return f"rows={self.rows}, columns={self.columns}, signed={self.signed}"


def sum_through_max(rows: int, columns: int, *, signed: bool = False) -> SumThroughMax:
    """The layer of Prop. 4 that sums m feature vectors of length n through a maximum.

    Args:
        rows: m, how many vectors are added.
        columns: n, their length.
        signed: Whether entries may be negative; then they travel as two non-negative parts.

    Example:
        >>> net = sum_through_max(2, 3)
        >>> net(torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]).double()).detach()
        tensor([11., 22., 33.], dtype=torch.float64)
    """
    return SumThroughMax(rows, columns, signed=signed)
