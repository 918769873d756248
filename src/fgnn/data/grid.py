"""Loopy grids with budgets over patches: a family where a learned solver is worth having."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fgnn.data.sampling import Source, generator, stream_seed
from fgnn.data.stored import StoredModels, load_models, save_models
from fgnn.infer import solve
from fgnn.pgm import ModelBatch
from fgnn.pgm.batch import BudgetBatch, TableBatch


@dataclass(frozen=True)
class GridMAP:
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
        """Draw models, on the device where they are used; arguments as in `ChainMAP.sample`."""
        place = torch.arange(self.num_variables, device=device).view(self.height, self.width)
        across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
        pairs = torch.cat([torch.stack([a.flatten(), b.flatten()], 1) for a, b in (across, down)])
        patches = self._patches(place)
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
            cardinalities=torch.full((self.num_variables,), 2, device=device),
            unary=unary,
            tables=(TableBatch(pairs, values),) if len(pairs) else (),
            budgets=(BudgetBatch(patches, least, most),) if len(patches) else (),
            constant=torch.zeros(count, dtype=dtype, device=device),
        )

    def _patches(self, place: Tensor) -> Tensor:
        rows, columns = self.patch
        if rows > self.height or columns > self.width:
            return place.new_zeros(0, rows * columns)
        windows = place.unfold(0, rows, self.stride[0]).unfold(1, columns, self.stride[1])
        return windows.reshape(-1, rows * columns)

    def labels(self, batch: ModelBatch, time_limit: float | None = None) -> Tensor:
        """The proved optimum of each model, shape (B, N), int64: by elimination, else by ``auto`` in the time given.

        Raises:
            ValueError: No optimum could be proved for some of the models.
        """
        from fgnn.infer.exact import TooLarge

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

    def batches(self, batch_size: int, seed: int = 0, start: int = 0, **options: Any) -> Iterator[ModelBatch]:
        """An endless stream of fresh batches, as `ChainMAP.batches`."""
        index = start
        while True:
            yield self.sample(batch_size, seed=stream_seed(seed, index), **options)
            index += 1

    def save(self, folder: str | Path, count: int, seed: int = 0) -> StoredModels:
        """Draw a fixed set, label it, and write it; a file is written whole or not at all."""
        batch = self.sample(count, seed=seed, source="cpu")
        return save_models(folder, "GridMAP", asdict(self), batch, self.labels(batch), seed)

    @staticmethod
    def load(folder: str | Path, device: torch.device | str = "cpu") -> StoredModels:
        """Read a set back: the family that drew it, its models and its labels."""
        return load_models(folder, device=device, expected="GridMAP")
