"""Several iterations of flooding in one launch, where all messages are log-ratios from pairs and budgets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.max_product.messages import PairClamp
from fgnn.infer.max_product.sweeps import Rule
from fgnn.infer.max_product.wiring import Numbers, Wiring, incident_rows
from fgnn.runtime.triton_support import can_launch, power_of_two

_WIDEST = 32  # variables of a budget, which are ranked by comparing all with all
_DEGREE = 64  # factors of a variable
_BLOCK = 32  # models of a program: a row of them is one line of the cache
_ROWS = 8  # pairs of a tile
# A program goes through its models' factors one after another: where there are many, only many models keep the GPU
# busy, and else separate operations over all factors do.
_MOST_FACTORS, _MANY_MODELS = 1000, 8192


@dataclass(frozen=True, eq=False)
class FusedFlooding:
    """The structure as the kernel reads it; places that are not there are -1."""

    wiring: Wiring
    rule: Rule
    pair_row: Tensor  # shape: (pairs, 2), int32
    budget_row: Tensor  # shape: (budgets, size), int32
    belief_of: Tensor  # shape: (Q,), int32
    incident: Tensor  # shape: (N, degree), int32

    @classmethod
    def of(cls, wiring: Wiring, rule: Rule, models: int) -> FusedFlooding | None:
        """None where the kernel does not serve the structure, or so few models of it that separate operations do."""
        if not wiring.ratios_only or any(not g.budget and len(g.states) != 2 for g in wiring.groups):
            return None
        rows = [torch.arange(g.span.start, g.span.stop).view(g.height, -1).t() for g in wiring.groups]
        pairs = [r for g, r in zip(wiring.groups, rows, strict=True) if not g.budget]
        budgets = [r for g, r in zip(wiring.groups, rows, strict=True) if g.budget]
        widest = max((r.shape[1] for r in budgets), default=1)
        incident = incident_rows(wiring.belief_of, wiring.num_beliefs)
        if widest > _WIDEST or incident is None or incident.shape[1] > _DEGREE:
            return None
        tiles = sum(map(len, pairs)) // _ROWS + sum(map(len, budgets)) + wiring.num_beliefs
        if tiles > _MOST_FACTORS and models < _MANY_MODELS:
            return None
        incident = incident.masked_fill(incident == len(wiring.belief_of), -1).cpu()
        device = wiring.belief_of.device

        def put(parts: list[Tensor], width: int) -> Tensor:
            padded = [torch.nn.functional.pad(x, (0, width - x.shape[1]), value=-1) for x in parts]
            whole = torch.cat([torch.zeros(0, width, dtype=torch.int64), *padded])
            return whole.to(device=device, dtype=torch.int32).contiguous()

        return cls(
            wiring, rule, put(pairs, 2), put(budgets, power_of_two(widest)), wiring.belief_of.to(torch.int32),
            put([incident], power_of_two(incident.shape[1])),
        )  # fmt: skip

    def run(
        self,
        numbers: Numbers,
        messages: Tensor,
        models: Tensor,
        active: Tensor,
        settled: Tensor,
        done: Tensor,
        deltas: Tensor,
        settings: Tensor,
        iterations: int,
        steps: int,
    ) -> None:
        """Move every active model on by ``steps`` iterations, in place; ``deltas`` (T, all models) has the room."""
        import triton

        from fgnn.infer.max_product.flooding_kernel import flooding_kernel

        count = len(models)
        pairs = [x for x in numbers.factors if isinstance(x, PairClamp)]
        bounds = [x for x in numbers.factors if isinstance(x, tuple)]
        shared = {x.sign.shape[-1] == 1 for x in pairs} == {True}

        def of_pairs(parts: list[Tensor]) -> Tensor:
            wide = parts if shared else [x.expand(-1, count) for x in parts]
            return torch.cat([*wide]) if wide else messages

        sign = of_pairs([x.sign for x in pairs])
        shift, low, high = (
            of_pairs([getattr(x, name)[axis] for axis in (0, 1) for x in pairs]) for name in ("shift", "low", "high")
        )
        sizes = [len(g.scopes) for g in self.wiring.groups if g.budget]
        one = all(isinstance(b, int) for pair in bounds for b in pair)

        def of_budgets(side: int) -> Tensor:
            parts = [
                torch.full((n, 1 if one else count), b, device=messages.device)
                if isinstance(b, int)
                else b.expand(-1, count)
                for n, b in zip(sizes, (pair[side] for pair in bounds), strict=True)
            ]
            return torch.cat(parts).to(torch.int32) if parts else self.belief_of

        floor = any(not isinstance(pair[0], int) or pair[0] != 0 for pair in bounds)
        flags = [x.to(torch.int8) for x in (active, settled)]
        flooding_kernel[(triton.cdiv(count, _BLOCK),)](
            messages, torch.empty_like(numbers.unary), numbers.unary, deltas, models, *flags, done,
            sign, shift, low, high, of_budgets(0), of_budgets(1),
            self.pair_row, self.budget_row, self.belief_of, self.incident, settings,
            count, deltas.shape[1], self.wiring.num_beliefs, len(self.pair_row), len(self.budget_row),
            iterations, steps,
            DEG=self.incident.shape[1], SIZE=self.budget_row.shape[1], ROWS=_ROWS, BLOCK=_BLOCK, OWN=self.rule.own,
            PAIR_WIDE=not shared, BOUND_WIDE=not one, FLOOR=floor, num_warps=1, num_stages=1,
        )  # fmt: skip
        active.copy_(flags[0])
        settled.copy_(flags[1])


def fused_flooding(wiring: Wiring, rule: Rule, models: int) -> FusedFlooding | None:
    """The kernel for a structure on a GPU, where it serves and Triton is there."""
    return FusedFlooding.of(wiring, rule, models) if can_launch(wiring.belief_of.device) else None
