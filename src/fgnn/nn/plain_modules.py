"""Which modules a fused operation may stand for: those that are as they were made.

A fused operation reads the parameters of modules and calls none of them. A module that a user has put in the place of
another, or whose calls a hook sees, must be called.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from fgnn.nn.backends.steps import recording

_PARAMETERS = (nn.Parameter, Tensor)  # of the kinds that can be read: quantised ones have kinds of their own


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of exactly this kind, and only its own forward sees its calls.

    Compiled code records steps only where all modules are known to be plain, and does not ask again.
    """
    return type(module) is kind and (recording() or not is_observed(module))


def is_observed(module: nn.Module) -> bool:
    """Whether a module has hooks, all modules have, or another forward stands in for its own."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or globally_hooked()
    )


def globally_hooked() -> bool:
    """Whether something wants to see every module's call."""
    return bool(
        _global_forward_hooks or _global_forward_pre_hooks or _global_backward_hooks or _global_backward_pre_hooks
    )


def linear_weights(layer: nn.Module) -> tuple[Any, Any] | None:
    """Θ and β of a plain linear layer; None if the layer must be called."""
    if not is_plain(layer, nn.Linear):
        return None
    theta, beta = layer._parameters.get("weight"), layer._parameters.get("bias")
    if type(theta) not in _PARAMETERS or not (beta is None or type(beta) in _PARAMETERS):
        return None
    return theta, beta
