"""What users do to the modules inside a network: replace, wrap, hook, parametrise, prune and quantise them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune


class LoRA(nn.Module):
    """An adapter around a linear layer, as in PEFT: it is no ``nn.Linear`` and has no attributes of one."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, 2, bias=False, dtype=inner.weight.dtype)
        self.up = nn.Linear(2, inner.out_features, bias=False, dtype=inner.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) + self.up(self.down(x))
        return y


class Doubled(nn.Module):
    """Any module, with twice its result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> Any:
        return double(self.inner(*args))


class Weighed(Tensor):
    """A tensor of a kind of its own, as quantised weights are: it knows the linear layer, and nothing else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            x, weight, *rest = args
            return func(x, 2 * weight.as_subclass(Tensor), *rest, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


def double(y: Any) -> Any:
    """Twice a tensor, the second of two, or the features of a layer."""
    if isinstance(y, Tensor):
        return 2 * y
    one, other = y
    return (2 * one, {k: 2 * g for k, g in other.items()}) if isinstance(other, dict) else (one, 2 * other)


def hook(module: nn.Module) -> None:
    module.register_forward_hook(lambda _, args, y: double(y))


def own_forward(module: nn.Module) -> None:
    forward = module.forward
    module.forward = lambda *args: 2 * forward(*args)


def weigh(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Weighed), requires_grad=False)


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "adapter": lambda net: net.__setitem__(0, LoRA(net[0])),
    "activation": lambda net: net.__setitem__(1, nn.GELU()),
    "no activation": lambda net: net.__delitem__(1),
    "one layer more": lambda net: net.insert(2, nn.LayerNorm(32, dtype=torch.float64)),
    "no bias": lambda net: net.__setitem__(0, nn.Linear(net[0].in_features, 32, bias=False, dtype=torch.float64)),
    "hook": lambda net: hook(net[0]),
    "hook before": lambda net: net[0].register_forward_pre_hook(lambda _, args: (2 * args[0],)),
    "hook on the activation": lambda net: hook(net[1]),
    "hook on the whole": hook,
    "forward of its own": lambda net: own_forward(net[0]),
    "weight norm": lambda net: parametrizations.weight_norm(net[0]),
    "spectral norm": lambda net: parametrizations.spectral_norm(net[0]).eval(),
    "pruned": lambda net: prune.l1_unstructured(net[0], "weight", 0.5),
    "quantised": lambda net: weigh(net[0]),
}
