"""Prop. 3: the maximum of every row of a matrix as a ReLU network."""

from __future__ import annotations

from torch import Tensor, nn

from fgnn.theory.parts import message_of
from fgnn.theory.relu import Number, ReluNetwork, Wire, maxima


class RowMax(nn.Module):
    r"""Prop. 3 (matrix_max): :math:`\hat x = [\max_j x_{ij}]_{i=1}^m` computed exactly by an M of ReLU layers.

    A tree compares pairs by
    :math:`\max(a, b) = \mathrm{relu}(a - b) + \mathrm{relu}(b) - \mathrm{relu}(-b)`. The paper counts two layers for
    each of the :math:`\log_2 n` levels, one with and one without ReLU; the latter is linear and merges into the next
    level, which leaves :math:`\lceil \log_2 n \rceil` hidden layers and a linear one.

    The paper's "at most 2n hidden units" holds for the widest layer, 3n/2 units, but not for the total: for n a power
    of two there are :math:`3(n - 1)` units, more than 2n for :math:`n \ge 4`. For non-negative entries relu(-b) = 0
    can be omitted; then :math:`2(n - 1)` units suffice, and the stated bound holds.
    """

    def __init__(self, columns: int, rows: int = 1, *, nonnegative: bool = False) -> None:
        super().__init__()
        if columns < 1 or rows < 1:
            raise ValueError(f"Expected a matrix with at least one entry (got {rows} x {columns})")
        self.rows, self.columns, self.nonnegative = rows, columns, nonnegative
        net = ReluNetwork(rows * columns)
        entries = [Number(Wire(wire.parts, positive=nonnegative)) for wire in net.inputs]
        best, _ = maxima(net, [entries[i * columns : (i + 1) * columns] for i in range(rows)])
        self.hidden_units = [len(bias) for _, bias in net.layers]
        self.message = message_of(net.finish([number.value for number in best]), rows * columns, final_relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """The maximum of every row, (..., m, n) -> (..., m)."""
        if tuple(x.shape[-2:]) != (self.rows, self.columns):
            raise ValueError(f"Expected matrices of {self.rows} x {self.columns} (got shape {tuple(x.shape)})")
        out: Tensor = self.message(x.flatten(-2), x.new_zeros(*x.shape[:-2], 0))
        return out

    def extra_repr(self) -> str:
        return f"rows={self.rows}, columns={self.columns}, hidden_units={self.hidden_units}"


def row_max_network(n: int, rows: int = 1, *, nonnegative: bool = False) -> RowMax:
    """The ReLU network of Prop. 3 for matrices of n columns.

    Args:
        n: The number of columns.
        rows: The number of rows; rows share no units.
        nonnegative: Whether all entries are at least 0, which saves a third of the units.

    Example:
        >>> import torch
        >>> net = row_max_network(4, rows=2)
        >>> net(torch.tensor([[1.0, 5.0, -2.0, 3.0], [-4.0, -1.0, -3.0, -2.0]]).double()).detach()
        tensor([ 5., -1.], dtype=torch.float64)
        >>> net.hidden_units
        [12, 6]
    """
    return RowMax(n, rows, nonnegative=nonnegative)
