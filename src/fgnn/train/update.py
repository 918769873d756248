"""What follows the gradients in a step: clipping, the optimiser, the running average of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.tasks.recipe import Recipe


class Update:
    """Clip the gradients, step the optimiser, move the average.

    On a GPU rate and share lie in tensors there, so that a recorded step reads those of its own time; all else is a
    few operations over all parameters at once, without a word to the host.

    Args:
        recipe: Names the optimiser, the bound of the gradient's norm and the average's decay.
        network: What is trained.
        average: Its running average; None without.
        device: Where both are.
    """

    def __init__(self, recipe: Recipe, network: nn.Module, average: nn.Module | None, device: torch.device) -> None:
        self.recipe, self.network, self.average = recipe, network, average
        self.optimiser = make_optimiser(recipe, network, device)
        # the share of the network that the average takes over; on a GPU a tensor that recorded steps read
        self._share: float | Tensor = torch.zeros((), device=device) if device.type == "cuda" else 0.0

    def prepare(self, step: int, rate: float) -> None:
        """Set what depends on the step."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.recipe.ema is not None:
            # early on faster, or the initial weights would linger
            share = 1 - min(self.recipe.ema, (1 + step) / (10 + step))
            if isinstance(self._share, Tensor):
                self._share.fill_(share)
            else:
                self._share = share

    def __call__(self) -> None:
        """Use the gradients."""
        if self.recipe.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.optimiser.clip)
        self.optimiser.step()
        if self.average is not None:
            move_average(self.average, self.network, self._share)


def make_optimiser(recipe: Recipe, network: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Adam or AdamW; on CUDA fused, one kernel for all parameters, with its rate in a tensor. Only matrices are
    decayed."""
    wanted = recipe.optimiser
    kind = torch.optim.AdamW if wanted.name == "adamw" else torch.optim.Adam
    matrices = [p for p in network.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in network.parameters() if p.requires_grad and p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": wanted.weight_decay}, {"params": others, "weight_decay": 0.0}]
    cuda = device.type == "cuda"
    return kind(
        [g for g in groups if g["params"]],
        lr=torch.tensor(wanted.rate, device=device) if cuda else wanted.rate,
        betas=(0.9, wanted.beta2),
        fused=True if cuda else None,
        capturable=cuda,
    )


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, share: float | Tensor) -> None:
    """Move the average towards the network by a share of their difference; buffers are taken as they are."""
    mine: list[Tensor] = list(average.parameters())
    theirs: list[Tensor] = list(network.parameters())
    if isinstance(share, Tensor):
        apart = torch._foreach_sub(theirs, mine)
        torch._foreach_mul_(apart, share)
        torch._foreach_add_(mine, apart)
    else:
        torch._foreach_lerp_(mine, theirs, share)
    for own, other in zip(average.buffers(), network.buffers(), strict=True):
        own.copy_(other)
