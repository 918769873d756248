"""The small network on edge features inside Q."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fgnn.nn.plain_modules import is_plain, linear_weights


class EdgeNet(nn.Sequential):
    """Linear layers with ReLU between them, on edge features.  # shape: (..., widths[0]) -> (..., widths[-1])"""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        for k, (i, o) in enumerate(pairwise(widths)):
            if k:
                self.append(nn.ReLU())
            self.append(nn.Linear(i, o))

    def reset_parameters(self) -> None:
        """Keep the scale of t through the layers, so that φ has unit variance, roughly."""
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                bound = 1 / math.sqrt(layer.in_features)
                nn.init.uniform_(layer.bias, -bound, bound)


def net_weights(net: nn.Module) -> tuple[Tensor, ...] | None:
    """Θ and β of each linear layer of an :class:`EdgeNet`; None if its modules are not as they were made."""
    if not is_plain(net, EdgeNet) or len(net._modules) % 2 == 0:
        return None
    found: list[Tensor] = []
    for k, layer in enumerate(net._modules.values()):
        assert layer is not None
        if k % 2:
            if not is_plain(layer, nn.ReLU):
                return None
            continue
        weights = linear_weights(layer)
        if weights is None or weights[1] is None:
            return None
        found += weights
    return tuple(found)
