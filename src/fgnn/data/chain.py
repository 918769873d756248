"""The chains of the paper's MAP experiment: pairs along a chain, and budgets over its windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.data.generated import GeneratedModels, Random, pairs_and_budgets
from fgnn.graph import Structure
from fgnn.infer import solve
from fgnn.pgm import ModelBatch, model_structure

_FIXED_PAIR = ((0.0, 0.1), (0.2, 1.0))
_KINDS = (1, 2, 3)


@dataclass(frozen=True)
class ChainMAP(GeneratedModels):
    r"""Chains of binary variables with a budget on every full window, section 4.1.

    .. math:: \max_x \sum_i \theta_i(x_i) + \sum_i \theta_{i,i+1}(x_i, x_{i+1})
        \quad \text{where} \quad x_i + \dots + x_{i+w-1} \le k_i

    Unaries of both states are uniform in [0, 1]. Pairs are ``[[0, 0.1], [0.2, 1]]`` in kind 1; in kinds 2 and 3 they
    are zero except for (1, 1), which is uniform in [0, 2]. Budgets allow ``budget`` ones in kinds 1 and 2; in kind 3
    the number is uniform in 1..window, drawn for each window.

    Args:
        kind: 1, 2 or 3, the paper's Dataset1 to Dataset3.
        length: Variables in the chain.
        window: Variables in a budget. The paper says 8; its authors' code used 9.
        budget: Largest number of ones in a window, kinds 1 and 2.
    """

    kind: int = 1
    length: int = 30
    window: int = 8
    budget: int = 5

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"Expected a kind of chain among 1, 2, 3 (got {self.kind})")
        self._check_positive("length", "window", "budget")
        if self.window > self.length:
            raise ValueError(f"Expected a window within the chain of {self.length} (got a window of {self.window})")

    def _draw(self, count: int, random: Random) -> ModelBatch:
        n, pairs, windows = self.length, self.length - 1, self.length - self.window + 1
        draws = 2 * n + (0 if self.kind == 1 else pairs) + (windows if self.kind == 3 else 0)
        numbers = random.uniform(count, draws)
        unary = numbers[:, : 2 * n].reshape(count, n, 2)
        at_most = torch.full((1, windows), min(self.budget, self.window), device=random.device)
        if self.kind == 1:
            values = unary.new_tensor(_FIXED_PAIR).expand(1, pairs, 2, 2)
        else:
            values = unary.new_zeros(count, pairs, 2, 2)
            values[..., 1, 1] = 2 * numbers[:, 2 * n : 2 * n + pairs]
        if self.kind == 3:
            # a product just below the size of the window may round up to it
            at_most = (numbers[:, 2 * n + pairs :] * self.window).long().clamp(max=self.window - 1) + 1
        shared = {1: {"values", "at_most"}, 2: {"at_most"}, 3: set[str]()}[self.kind]
        return pairs_and_budgets(self.structure().to(random.device), unary, values, at_most, frozenset(shared))

    def structure(self) -> Structure:
        """Pairs of neighbours, and windows."""
        at = torch.arange(self.length)
        pairs = [torch.stack([at[:-1], at[1:]], 1)] if self.length > 1 else []
        windows = at[: self.length - self.window + 1, None] + at[: self.window]
        return model_structure(torch.full((self.length,), 2), pairs, [windows])

    def labels(self, batch: ModelBatch) -> Tensor:
        return solve(batch, "exact").assignment
