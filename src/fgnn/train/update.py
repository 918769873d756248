"""The update after the gradients: learning rate, clipping, the optimiser, the average of the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fgnn.tasks import Schedule, TrainingSettings


class Update:
    """Clip the gradients, step the optimiser, move the average.

    On a GPU the learning rate and the averaging weight are device tensors, so that a captured step reads their current
    values. Each part is a few operations over all parameters at once, without host synchronisation.

    Args:
        settings: Name the optimiser, the bound on the gradient norm and the decay of the average.
        network: The network to train.
        average: The exponential moving average of its weights, if any.
        device: Where both are.
    """

    def __init__(
        self, settings: TrainingSettings, network: nn.Module, average: nn.Module | None, device: torch.device
    ) -> None:
        self.settings, self.network, self.average = settings, network, average
        self.optimiser = make_optimiser(settings, network, device)
        # weight of the network in the average; on a GPU a tensor that captured steps read
        self._share: float | Tensor = torch.zeros((), device=device) if device.type == "cuda" else 0.0

    def prepare(self, step: int, rate: float) -> None:
        """Set the values that depend on the step."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.settings.ema is not None:
            # faster at first, or the initial weights would linger
            share = 1 - min(self.settings.ema, (1 + step) / (10 + step))
            if isinstance(self._share, Tensor):
                self._share.fill_(share)
            else:
                self._share = share

    def __call__(self) -> None:
        """Apply the gradients."""
        if self.settings.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.optimiser.clip)
        self.optimiser.step()
        if self.average is not None:
            move_average(self.average, self.network, self._share)


def make_optimiser(settings: TrainingSettings, network: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return Adam or AdamW, on CUDA fused and with its rate in a tensor; only matrices decay."""
    wanted = settings.optimiser
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
    """Move the average towards the network by a share of their difference; buffers are copied."""
    averages: list[Tensor] = list(average.parameters())
    current: list[Tensor] = list(network.parameters())
    if isinstance(share, Tensor):
        difference = torch._foreach_sub(current, averages)
        torch._foreach_mul_(difference, share)
        torch._foreach_add_(averages, difference)
    else:
        torch._foreach_lerp_(averages, current, share)
    for target, source in zip(average.buffers(), network.buffers(), strict=True):
        target.copy_(source)


def rate_factor(schedule: Schedule, step: int, total: int | None, epoch_steps: int | None) -> float:
    """Return the factor of the base rate at ``step`` (from 0), with no state to save.

    Args:
        total: Steps of the run; while it is unknown (None) a cosine stays at its peak.
        epoch_steps: Steps per epoch, for the exponential schedule.
    """
    warm = min(1.0, (step + 1) / schedule.warmup) if schedule.warmup else 1.0
    if schedule.name == "constant" or (schedule.name == "cosine" and total is None):
        return warm
    if schedule.name == "exponential":
        if epoch_steps is None:
            raise ValueError("Expected a number of steps per epoch for an exponential schedule (got none)")
        return warm * schedule.factor ** (step // epoch_steps)
    assert total is not None
    span = max(1, total - schedule.warmup)
    done = min(1.0, max(0.0, (step - schedule.warmup) / span))
    return warm * (schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done)))
