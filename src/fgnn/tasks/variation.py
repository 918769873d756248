"""Random changes of clouds in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fgnn.schema import Between, Length, Positive, check_fields, parse
from fgnn.weights import Card


@dataclass(frozen=True)
class Variation:
    """How training changes a cloud: factors along each axis, shifts up to ``shift``, half of the clouds mirrored in z,
    and noise of standard deviation ``jitter`` on every coordinate, cut off at five of them."""

    scale: Annotated[tuple[Positive, ...], Length(2, 2)] = (0.8, 1.25)
    shift: Annotated[float, Between(0)] = 0.1
    mirror: bool = True
    jitter: Annotated[float, Between(0)] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"Expected the smallest and the largest factor (got {list(self.scale)})")


def variation_of(card: Card) -> Variation:
    """Return the variation that the weights of a card were trained with; the usual one for cards that name none."""
    settings = card.get("recipe")
    values = settings.get("variation", {}) if isinstance(settings, dict) else {}
    return parse(Variation, values, file=card.file, place="recipe.variation")


def vary(
    features: Tensor,
    random: Tensor,
    variation: Variation = Variation(),
    noise: Tensor | None = None,
) -> Tensor:
    """Scale clouds (B, P, F) along each axis, shift them, mirror half of them, and jitter their points.

    Shapes of this benchmark are symmetric in z.

    Args:
        random: (B, 7), uniform in 0 to 1.
        noise: (B, P, 3), of standard normal distribution; without it there is no jitter.
    """
    low, high = variation.scale
    scale = low + (high - low) * random[:, None, :3]
    if variation.mirror:
        mirror = 1.0 - 2.0 * (random[:, 6] < 0.5).to(scale.dtype)
        scale = scale * torch.stack([torch.ones_like(mirror), torch.ones_like(mirror), mirror], -1)[:, None]
    moved = features[..., :3] * scale + 2 * variation.shift * (random[:, None, 3:6] - 0.5)
    if noise is not None:
        moved = moved + variation.jitter * noise.clamp(-5, 5)
    return moved if features.shape[2] == 3 else torch.cat([moved, features[..., 3:]], -1)
