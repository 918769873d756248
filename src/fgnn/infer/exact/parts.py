"""Split a batch into the components that elimination can solve, and those it cannot."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.pgm import ModelBatch


@dataclass(frozen=True, eq=False)
class Split:
    """The states that can occur, and the variables in components too wide to eliminate."""

    live: NDArray[np.bool_]  # shape: (N, K)
    hard: NDArray[np.bool_]  # shape: (N,); variables with one live state are in no component

    @property
    def divides(self) -> bool:
        """Whether there is something besides the hard components: easy ones, or fixed variables."""
        return bool(self.hard.any() and not self.hard.all())


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the variables of a batch as a batch of its own."""

    batch: ModelBatch
    variables: Tensor  # shape: (n,), their numbers in the whole batch, ascending
    own: Tensor  # shape: (n,), bool: those whose states this part determines


def take_apart(batch: ModelBatch, split: Split) -> tuple[Part, Part]:
    """The easy and the hard part. Scores add up: every factor and the constant are in exactly one of them.

    A fixed variable in the scope of a hard factor is in both parts, its unaries only in the easy one.
    """
    hard = torch.from_numpy(split.hard).to(batch.device)
    live = torch.from_numpy(split.live).to(batch.device)
    unary = batch.unary.masked_fill(~live, -torch.inf)
    touched = hard.clone()
    for group in batch.structure.groups.values():
        touched[group.scopes[hard[group.scopes].any(1)].flatten()] = True
    # In the hard part a fixed variable has only its state, with value 0.
    bare = torch.where(hard[:, None], unary, torch.zeros_like(unary).masked_fill(~live, -torch.inf))

    def part(unary: Tensor, members: Tensor, own: Tensor, constant: Tensor, is_hard: bool) -> Part:
        variables = members.nonzero().squeeze(1)
        number = torch.full((batch.num_variables,), -1, dtype=torch.int64, device=batch.device)
        number[variables] = torch.arange(len(variables), device=batch.device)

        groups = []
        for group in batch.factors:
            some = group.some((hard[group.scopes].any(1) == is_hard).nonzero().squeeze(1))
            if len(some.scopes):
                groups.append(replace(some, scopes=number[some.scopes]))
        piece = ModelBatch.of(batch.cardinalities[variables], unary[:, variables], groups, constant)
        return Part(piece, variables, own[variables])

    easy = part(unary, ~hard, ~hard, batch.constant, False)
    return easy, part(bare, touched, hard, torch.zeros_like(batch.constant), True)
