"""Several iterations of flooding in one launch, for log-ratios of binary variables under pairs and numbers of ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fgnn.infer.kernel_tiles import MODELS, ROWS, index_rows, worth_fusing
from fgnn.infer.max_product.binary_pairs import PairClamp
from fgnn.infer.max_product.numbers import Numbers
from fgnn.infer.max_product.pool import Pool
from fgnn.infer.max_product.potentials import OnesPotentials
from fgnn.infer.max_product.wiring import Wiring, incident_rows
from fgnn.pgm.factors.ones import Bound
from fgnn.runtime.triton_support import can_launch, power_of_two

_WIDEST = 32  # variables of a factor that counts ones: ranked by comparing all pairs
_DEGREE = 64  # factors of a variable


@dataclass(frozen=True, eq=False)
class FusedFlooding:
    """The structure as the kernel reads it; padded with -1.

    Attributes:
        every: Iterations of a launch.
        replaces: Whether models that have ended make room for others.
    """

    every: ClassVar[int] = 16
    replaces: ClassVar[bool] = True
    pair_row: Tensor  # shape: (pairs, 2), int32
    ones_row: Tensor  # shape: (counts of ones, size), int32
    belief_of: Tensor  # shape: (Q,), int32
    incident: Tensor  # shape: (N, degree), int32
    group_sizes: tuple[int, ...]  # counts of ones in each group

    @classmethod
    def of(cls, wiring: Wiring) -> FusedFlooding | None:
        """None if the kernel does not support the structure."""
        pairs = [g for g in wiring.groups if g.form == "table" and len(g.states) == 2]
        ones = [g for g in wiring.groups if g.form == "ones"]
        if not wiring.ratios_only or len(pairs) + len(ones) < len(wiring.groups):
            return None
        widest = max((len(g.states) for g in ones), default=1)
        incident = incident_rows(wiring.belief_of, wiring.num_beliefs)
        if widest > _WIDEST or incident is None or incident.shape[1] > _DEGREE:
            return None
        incident = incident.masked_fill(incident == len(wiring.belief_of), -1)
        device = wiring.belief_of.device
        return cls(
            index_rows([g.rows().t() for g in pairs], 2, device),
            index_rows([g.rows().t() for g in ones], power_of_two(widest), device),
            wiring.belief_of.to(torch.int32),
            index_rows([incident], power_of_two(incident.shape[1]), device),
            tuple(len(g.scopes) for g in ones),
        )

    def run(self, pool: Pool, deltas: Tensor, settings: Tensor, *, own: bool, iterations: int, steps: int) -> None:
        """Advance every active model of a pool by ``steps`` iterations, in place.

        Args:
            pool: The models.
            deltas: Shape (T, all models); needs a row for every iteration.
            settings: The share of an update that is taken, the tolerance, and the largest message of a count of ones.
            own: Whether factors read back their own messages, see `Rule`.
            iterations: The limit for each model.
            steps: How many to run now.
        """
        import triton

        from fgnn.infer.max_product.flooding_kernel import flooding_kernel

        numbers, messages, count = pool.numbers, pool.messages, len(pool.models)
        (sign, shift, low, high), shared_pairs = _pair_numbers(numbers, messages)
        bounds = [(x.low, x.high) for x in numbers.factors if isinstance(x, OnesPotentials)]
        shared_bounds = all(isinstance(b, int) for pair in bounds for b in pair)
        width = 1 if shared_bounds else count
        least, most = (self._stacked_bounds([pair[side] for pair in bounds], width) for side in (0, 1))
        floor = any(not isinstance(pair[0], int) or pair[0] != 0 for pair in bounds)
        flags = [x.to(torch.int8) for x in (pool.active, pool.converged)]
        flooding_kernel[(triton.cdiv(count, MODELS),)](
            messages, torch.empty_like(numbers.unary), numbers.unary, deltas, pool.models, *flags, pool.done,
            sign, shift, low, high, least, most,
            self.pair_row, self.ones_row, self.belief_of, self.incident, settings,
            count, deltas.shape[1], len(self.incident), len(self.pair_row), len(self.ones_row),
            iterations, steps,
            DEG=self.incident.shape[1], SIZE=self.ones_row.shape[1], ROWS=ROWS, BLOCK=MODELS, OWN=own,
            PAIR_WIDE=not shared_pairs, BOUND_WIDE=not shared_bounds, FLOOR=floor, num_warps=1, num_stages=1,
        )  # fmt: skip
        pool.active.copy_(flags[0])
        pool.converged.copy_(flags[1])

    def _stacked_bounds(self, bounds: list[Bound], width: int) -> Tensor:
        """The bounds of all counts of ones, shape (counts, width); any tensor if there are none."""
        device = self.belief_of.device
        columns = [
            torch.full((n, width), b, device=device) if isinstance(b, int) else b.expand(-1, width)
            for n, b in zip(self.group_sizes, bounds, strict=True)
        ]
        return torch.cat(columns).to(torch.int32) if columns else self.belief_of


def _pair_numbers(numbers: Numbers, messages: Tensor) -> tuple[list[Tensor], bool]:
    """sign (pairs, B or 1), then shift, low and high (2·pairs, B or 1) by the axis sent to; and whether B is 1."""
    pairs = [x for x in numbers.factors if isinstance(x, PairClamp)]
    shared = {x.sign.shape[-1] == 1 for x in pairs} == {True}

    def stacked(parts: list[Tensor]) -> Tensor:
        columns = parts if shared else [x.expand(-1, messages.shape[1]) for x in parts]
        return torch.cat(columns) if columns else messages

    by_axis = [stacked([getattr(x, name)[axis] for axis in (0, 1) for x in pairs]) for name in ("shift", "low", "high")]
    return [stacked([x.sign for x in pairs]), *by_axis], shared


def fused_flooding(wiring: Wiring, models: int) -> FusedFlooding | None:
    """The kernel for a structure, if it can run there, supports it, and is faster for that many models."""
    if not can_launch(wiring.belief_of.device):
        return None
    fused = wiring.derived("fused flooding", lambda: FusedFlooding.of(wiring))
    if fused is None or not worth_fusing(len(fused.pair_row), len(fused.ones_row), len(fused.incident), models):
        return None
    return fused
