"""The chains of the paper's MAP experiment: pairs along a chain, and budgets over its windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.data.generated import GeneratedModels
from fgnn.data.sampling import Source, generator
from fgnn.graph import Structure
from fgnn.infer import solve
from fgnn.pgm import BudgetBatch, ModelBatch, TableBatch, model_structure

_FIXED_PAIR = ((0.0, 0.1), (0.2, 1.0))
_KINDS = (1, 2, 3)


@dataclass(frozen=True)
class ChainMAP(GeneratedModels):
    r"""Chains of binary variables with budgets over every window that lies fully inside, section 4.1.

    .. math:: \max_x \sum_i \theta_i(x_i) + \sum_i \theta_{i,i+1}(x_i, x_{i+1})
        \quad \text{where} \quad x_i + \dots + x_{i+w-1} \le k_i

    Unaries are uniform in [0, 1], for both states. Kind 1 has fixed pairs ``[[0, 0.1], [0.2, 1]]``; in kinds 2 and 3
    a pair is zero but for (1, 1), uniform in [0, 2]. Budgets allow ``budget`` ones in kinds 1 and 2, and a number
    uniform in 1..window, drawn for each window, in kind 3.

    Args:
        kind: 1, 2 or 3, the paper's Dataset1 to Dataset3.
        length: Variables in the chain.
        window: Variables under one budget. The paper prints 8; its authors' code used 9.
        budget: The most ones in a window, kinds 1 and 2.
    """

    kind: int = 1
    length: int = 30
    window: int = 8
    budget: int = 5

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"Expected a kind of chain among 1, 2, 3 (got {self.kind})")
        for name in ("length", "window", "budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected a {name} of at least 1 (got {getattr(self, name)})")
        if self.window > self.length:
            raise ValueError(f"Expected a window within the chain of {self.length} (got a window of {self.window})")

    def sample(
        self,
        count: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        source: Source = "device",
    ) -> ModelBatch:
        n, pairs, windows = self.length, self.length - 1, self.length - self.window + 1
        draws = 2 * n + (0 if self.kind == 1 else pairs) + (windows if self.kind == 3 else 0)
        drawn = generator(seed, device, source)
        numbers = torch.rand(count, draws, generator=drawn, device=drawn.device, dtype=dtype).to(device)
        unary = numbers[:, : 2 * n].reshape(count, n, 2)
        if self.kind == 1:
            values = torch.tensor(_FIXED_PAIR, dtype=dtype, device=device).expand(count, pairs, 2, 2)
        else:
            values = torch.zeros(count, pairs, 2, 2, dtype=dtype, device=device)
            values[..., 1, 1] = 2 * numbers[:, 2 * n : 2 * n + pairs]
        if self.kind == 3:
            # a product just below the window's size may round up to it
            at_most = (numbers[:, 2 * n + pairs :] * self.window).long().clamp(max=self.window - 1) + 1
        else:
            at_most = torch.full((1, 1), min(self.budget, self.window), device=device).expand(count, windows)
        structure = self.structure().to(device)
        fixed_pairs = frozenset({"values"} if self.kind == 1 else ())
        fixed_bounds = frozenset({"at_least"} if self.kind == 3 else {"at_least", "at_most"})
        budgets = BudgetBatch(
            scopes=structure.groups["budget0"].scopes,
            at_least=torch.zeros(1, 1, dtype=torch.int64, device=device).expand(count, windows),
            at_most=at_most,
            shared=fixed_bounds,
        )
        return ModelBatch(
            structure,
            unary=unary,
            tables=(TableBatch(structure.groups["table0"].scopes, values, shared=fixed_pairs),) if pairs else (),
            budgets=(budgets,),
            constant=torch.zeros(count, dtype=dtype, device=device),
        )

    def structure(self) -> Structure:
        """Pairs of neighbours, and windows."""
        at = torch.arange(self.length)
        pairs = [torch.stack([at[:-1], at[1:]], 1)] if self.length > 1 else []
        windows = at[: self.length - self.window + 1, None] + at[: self.window]
        return model_structure(torch.full((self.length,), 2), pairs, [windows])

    def labels(self, batch: ModelBatch) -> Tensor:
        return solve(batch, "exact").assignment
