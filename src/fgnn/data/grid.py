"""Loopy grids with budgets over patches: a family on which LP and max-product fail."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.data.generated import GeneratedModels, Random, pairs_and_budgets
from fgnn.graph import Structure
from fgnn.infer import solve
from fgnn.pgm import ModelBatch, model_structure


@dataclass(frozen=True)
class GridMAP(GeneratedModels):
    r"""Spin glasses with budgets: binary variables on a grid, couplings of both signs, a budget on every patch.

    .. math:: \max_x \sum_i \theta_i(x_i) + \sum_{i \sim j} \tfrac{1}{2} J_{ij} s_i s_j
        \quad \text{where} \quad \sum_{i \in P} x_i \le k_P, \qquad s_i = 2 x_i - 1

    Unaries of both states are normal with standard deviation ``field``; :math:`J_{ij}` is normal with standard
    deviation ``coupling``, so half of the pairs attract and half repel. Patches overlap (``stride``), and :math:`k_P`
    is uniform from a third to two thirds of the size of a patch.

    With the defaults neither the LP nor max-product is enough: on 8 × 8 grids the rounded LP is almost never optimal
    and damped max-product on about one grid in fourteen, while elimination proves the optimum in milliseconds. Optima
    of much larger grids cannot be proved.

    Args:
        height: Rows.
        width: Columns.
        patch: Rows and columns of a patch, 2 × 3 to 3 × 3.
        stride: Rows and columns from one patch to the next.
        coupling: Standard deviation of the couplings.
        field: Standard deviation of the unaries.
    """

    height: int = 8
    width: int = 8
    patch: tuple[int, int] = (2, 3)
    stride: tuple[int, int] = (1, 1)
    coupling: float = 2.0
    field: float = 1.0

    def __post_init__(self) -> None:
        self._check_positive("height", "width")
        for name in ("patch", "stride"):
            pair = tuple(getattr(self, name))
            if len(pair) != 2 or min(pair) < 1:
                raise ValueError(f"Expected rows and columns of a {name}, each at least 1 (got {pair})")
            object.__setattr__(self, name, pair)  # JSON and YAML give lists
        rows, columns = self.patch
        if rows > self.height or columns > self.width:
            raise ValueError(
                f"Expected patches within the grid of {self.height} x {self.width} (got patches of {rows} x {columns})"
            )

    @property
    def num_variables(self) -> int:
        return self.height * self.width

    @property
    def allowed(self) -> tuple[int, int]:
        """The smallest and the largest number of ones that the budget of a patch may allow."""
        size = self.patch[0] * self.patch[1]
        return max(1, size // 3), max(1, 2 * size // 3)

    def _draw(self, count: int, random: Random) -> ModelBatch:
        structure = self.structure().to(random.device)
        pairs = len(structure.groups["table0"].scopes) if "table0" in structure.groups else 0
        unary = self.field * random.normal(count, self.num_variables, 2)
        half = 0.5 * self.coupling * random.normal(count, pairs)
        values = torch.stack([half, -half, -half, half], -1).view(count, pairs, 2, 2)
        at_most = random.integers(*self.allowed, count, len(structure.groups["budget0"].scopes))
        return pairs_and_budgets(structure, unary, values, at_most)

    def structure(self) -> Structure:
        """Pairs of neighbours across and down, and patches."""
        place = torch.arange(self.num_variables).view(self.height, self.width)
        across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
        pairs = torch.cat([torch.stack([a.flatten(), b.flatten()], 1) for a, b in (across, down)])
        (rows, columns), (down_by, across_by) = self.patch, self.stride
        patches = place.unfold(0, rows, down_by).unfold(1, columns, across_by).reshape(-1, rows * columns)
        return model_structure(torch.full((self.num_variables,), 2), [pairs] if len(pairs) else [], [patches])

    def labels(self, batch: ModelBatch, time_limit: float | None = None) -> Tensor:
        """The proved optimum of each model, shape (B, N), int64: by elimination, or by ``auto`` within the time limit.

        Raises:
            ValueError: The optimum of some model could not be proved.
        """
        from fgnn.infer.exact.solver import TooLarge

        try:
            solutions = solve(batch, "exact")
        except TooLarge:
            solutions = solve(batch, "auto", time_limit=time_limit)
        unproved = sum(status != "optimal" for status in solutions.status)
        if unproved:
            raise ValueError(
                f"Expected grids small enough to prove (got {unproved} of {len(batch)} unproved at "
                f"{self.height} x {self.width})"
            )
        return solutions.assignment
