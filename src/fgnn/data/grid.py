"""Loopy grids with budgets over patches: a family where a learned solver is worth having."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.data.generated import GeneratedModels
from fgnn.data.sampling import Source, generator
from fgnn.graph import Structure
from fgnn.infer import solve
from fgnn.pgm import BudgetBatch, ModelBatch, TableBatch, model_structure


@dataclass(frozen=True)
class GridMAP(GeneratedModels):
    r"""Spin glasses with budgets: binary variables on a grid, couplings of both signs, budgets over every patch.

    .. math:: \max_x \sum_i \theta_i(x_i) + \sum_{i \sim j} \tfrac{1}{2} J_{ij} s_i s_j
        \quad \text{where} \quad \sum_{i \in P} x_i \le k_P, \qquad s_i = 2 x_i - 1

    Unaries are normal with deviation ``field``, for both states; :math:`J_{ij}` is normal with deviation ``coupling``,
    so half of the pairs attract and half repel. Patches overlap (``stride``), and :math:`k_P` is uniform from a third
    to two thirds of a patch's size.

    With the defaults neither the LP nor max-product is enough: on 8 × 8 grids the LP's rounding is optimal on almost
    none and damped max-product on about one in fourteen, while elimination proves the optimum in milliseconds.
    Grids much larger than that have no proof in reach.

    Args:
        height: Rows.
        width: Columns.
        patch: Rows and columns of a patch, 2 × 3 to 3 × 3.
        stride: Rows and columns from one patch to the next.
        coupling: The deviation of the couplings.
        field: The deviation of the unaries.
    """

    height: int = 8
    width: int = 8
    patch: tuple[int, int] = (2, 3)
    stride: tuple[int, int] = (1, 1)
    coupling: float = 2.0
    field: float = 1.0

    def __post_init__(self) -> None:
        for name in ("height", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected a {name} of at least 1 (got {getattr(self, name)})")
        for name in ("patch", "stride"):
            pair = tuple(getattr(self, name))
            if len(pair) != 2 or min(pair) < 1:
                raise ValueError(f"Expected rows and columns of a {name}, each at least 1 (got {pair})")
            object.__setattr__(self, name, pair)  # a list, as JSON and YAML give it, becomes a tuple
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
        """The least and the greatest number of ones that a patch's budget may allow."""
        size = self.patch[0] * self.patch[1]
        return max(1, size // 3), max(1, 2 * size // 3)

    def sample(
        self,
        count: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        source: Source = "device",
    ) -> ModelBatch:
        structure = self.structure().to(device)
        pairs = structure.groups["table0"].scopes if "table0" in structure.groups else ()
        patches = structure.groups["budget0"].scopes
        drawn = generator(seed, device, source)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=drawn, device=drawn.device, dtype=dtype).to(device)

        unary = self.field * normal(count, self.num_variables, 2)
        half = 0.5 * self.coupling * normal(count, len(pairs))
        values = torch.stack([half, -half, -half, half], -1).view(count, len(pairs), 2, 2)
        low, high = self.allowed
        most = torch.randint(low, high + 1, (count, len(patches)), generator=drawn, device=drawn.device).to(device)
        least = torch.zeros(1, 1, dtype=torch.int64, device=device).expand(count, len(patches))
        return ModelBatch(
            structure,
            unary=unary,
            tables=(TableBatch(pairs, values),) if isinstance(pairs, Tensor) else (),
            budgets=(BudgetBatch(patches, least, most, shared=frozenset({"at_least"})),),
            constant=torch.zeros(count, dtype=dtype, device=device),
        )

    def structure(self) -> Structure:
        """Pairs of neighbours across and down, and patches."""
        place = torch.arange(self.num_variables).view(self.height, self.width)
        across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
        pairs = torch.cat([torch.stack([a.flatten(), b.flatten()], 1) for a, b in (across, down)])
        (rows, columns), (down_by, across_by) = self.patch, self.stride
        patches = place.unfold(0, rows, down_by).unfold(1, columns, across_by).reshape(-1, rows * columns)
        return model_structure(torch.full((self.num_variables,), 2), [pairs] if len(pairs) else [], [patches])

    def labels(self, batch: ModelBatch, time_limit: float | None = None) -> Tensor:
        """The proved optimum of each model, shape (B, N), int64: by elimination, else by ``auto`` in the time given.

        Raises:
            ValueError: No optimum could be proved for some of the models.
        """
        from fgnn.infer.exact.solver import TooLarge

        try:
            found = solve(batch, "exact")
        except TooLarge:
            found = solve(batch, "auto", time_limit=time_limit)
        unproved = sum(status != "optimal" for status in found.status)
        if unproved:
            raise ValueError(
                f"Expected grids small enough to prove (got {unproved} of {len(batch)} unproved at "
                f"{self.height} x {self.width})"
            )
        return found.assignment
