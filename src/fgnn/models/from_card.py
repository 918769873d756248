"""Build the network that a card or a recipe describes, within bounds on its size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from fgnn.errors import InputError
from fgnn.runtime.tensor_limit import TensorLimit
from fgnn.weights import Weights

N = TypeVar("N", bound=nn.Module)

# Numbers beyond those of the file: buffers that are not stored.
_SLACK = 1 << 20
# Of a network to train: 0.4 GB in float32, and four times as much with the state of Adam.
MOST_NUMBERS = 10**8


def build_within(make: Callable[[], N], most: int = MOST_NUMBERS, *, file: str | Path | None = None) -> N:
    """Call ``make``, which builds the network of settings from a file; refuse one of more than ``most`` numbers."""
    try:
        with TensorLimit(most):
            return make()
    except ValueError as error:
        raise InputError(str(error), file=file, place="network") from error


def load_into(make: Callable[[], N], weights: Weights, device: torch.device | str = "cpu") -> N:
    """Call ``make``, load the tensors and return the network in evaluation mode.

    A card that asks for another network than that of its tensors is refused, before it takes more memory than they do.
    """
    file, tensors = weights.card.file, dict(weights.tensors)
    network = build_within(make, sum(t.numel() for t in tensors.values()) + _SLACK, file=file)
    wanted = network.state_dict()
    for name in [*wanted, *tensors]:
        asked = tuple(wanted[name].shape) if name in wanted else "none"
        held = tuple(tensors[name].shape) if name in tensors else "none"
        if asked != held:
            what = f"Expected the tensors of the network on the card, {asked} as {name} (the file has {held})"
            raise InputError(what, file=file, place="network")
    network.load_state_dict(tensors)
    return network.to(device).eval()
