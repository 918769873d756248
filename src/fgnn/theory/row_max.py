"""Prop. 3: the maximum of every row of a matrix as a ReLU network."""

from __future__ import annotations

from torch import Tensor, nn

from fgnn.theory.parts import message_of
from fgnn.theory.relu import ReluNetwork, Wire, larger, larger_by_difference, maxima


class RowMax(nn.Module):
    r"""Prop. 3 (matrix_max): :math:`\hat x = [\max_j x_{ij}]_{i=1}^m` computed exactly by an M of ReLU layers.

    A tree compares pairs by
    :math:`\max(a, b) = \mathrm{relu}(a - b) + \mathrm{relu}(b) - \mathrm{relu}(-b)`. The paper counts two layers for
    each of the :math:`\log_2 n` levels, one with and one without ReLU; the latter is linear and merges into the next
    level, which leaves :math:`\lceil \log_2 n \rceil` hidden layers and a linear one.

    A level of m numbers takes :math:`m + \lceil m/2 \rceil` units: three for each pair and two for a number left over.
    With :math:`m_l = \lceil n / 2^l \rceil` and :math:`L = \lceil \log_2 n \rceil` the total is

    .. math:: 2 \sum_{l < L} m_l - n + 1 \ge 3 (n - 1),

    with equality if n is a power of two. The paper's "at most 2n hidden units" holds for the widest layer, but for the
    total only if n = 2. For non-negative entries relu(-b) = 0 can be omitted; then :math:`\sum_{l < L} m_l` units
    suffice, which is :math:`2(n - 1)` for powers of two and exceeds 2n for the first time at n = 9.

    Over the reals this is exact. In floating point :math:`a - b` rounds, and each level adds an error of up to
    :math:`2^{-51}` times the largest absolute value of the row, even where the maximum is small. With ``select`` the
    result is an entry of the row, bit for bit: a comparison then only decides which of the two passes (see
    `larger` in ``fgnn.theory.relu``), with two hidden layers and twelve units instead of one and three.
    """

    def __init__(self, columns: int, rows: int = 1, *, nonnegative: bool = False, select: bool = False) -> None:
        super().__init__()
        if columns < 1 or rows < 1:
            raise ValueError(f"Expected a matrix with at least one entry (got {rows} x {columns})")
        self.rows, self.columns, self.nonnegative, self.select = rows, columns, nonnegative, select
        net = ReluNetwork(rows * columns)
        entries = [Wire(wire.parts, positive=nonnegative) for wire in net.inputs]
        table = [entries[i * columns : (i + 1) * columns] for i in range(rows)]
        best, _ = maxima(net, table, compare=larger if select else larger_by_difference)
        self.hidden_units = [len(bias) for _, bias in net.layers]
        self.message = message_of(net.finish(best), rows * columns, final_relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """The maximum of every row, (..., m, n) -> (..., m)."""
        if tuple(x.shape[-2:]) != (self.rows, self.columns):
            raise ValueError(f"Expected matrices of {self.rows} x {self.columns} (got shape {tuple(x.shape)})")
        out: Tensor = self.message(x.flatten(-2), x.new_zeros(*x.shape[:-2], 0))
        return out

    def extra_repr(self) -> str:
        return f"rows={self.rows}, columns={self.columns}, hidden_units={self.hidden_units}"


def row_max_network(n: int, rows: int = 1, *, nonnegative: bool = False, select: bool = False) -> RowMax:
    """The ReLU network of Prop. 3 for matrices of n columns.

    Args:
        n: The number of columns.
        rows: The number of rows; rows share no units.
        nonnegative: Whether all entries are at least 0, which saves a third of the units.
        select: Whether to return an entry of the row bit for bit, at the price of more units.

    Example:
        >>> import torch
        >>> net = row_max_network(4, rows=2)
        >>> net(torch.tensor([[1.0, 5.0, -2.0, 3.0], [-4.0, -1.0, -3.0, -2.0]]).double()).detach()
        tensor([ 5., -1.], dtype=torch.float64)
        >>> net.hidden_units
        [12, 6]
    """
    return RowMax(n, rows, nonnegative=nonnegative, select=select)
