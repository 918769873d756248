"""Modules that replay their launches on a GPU, by themselves: a decorator of their forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from fgnn.graph import tracing
from fgnn.nn.backends.choice import forced_backend
from fgnn.nn.recorder import Form, Origin, Recorder, is_recording
from fgnn.nn.replayed_call import ReplayedCall

F = TypeVar("F", bound=Callable[..., Any])
_NAME = "launches"  # of the attribute
_KEEP = 32  # recordings of a module; they hold index tensors and constants, no activations
_KNOWN = (
    nn.Linear, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.BatchNorm1d, nn.LayerNorm, nn.RMSNorm,
    nn.GroupNorm, nn.Dropout, nn.ReLU, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh,
    nn.Softplus, nn.Softmax,
)  # fmt: skip


def replays(forward: F) -> F:
    """Replay the launches of a module's forward and backward pass on a GPU, from the third call of a kind on.

    What Python finds out about a call (shapes, kernels, grids, memory) is the same at every call with the same graph,
    shapes, modes and parameters, and takes several times as long as the kernels of a small network. Results, gradients
    and memory are as without it: see :class:`ReplayedCall`. Hooks, new parameters or numbers, subclasses and other
    custom modules inside, ``torch.compile`` and ``torch.func``, and :func:`record` with False see the module itself.
    """

    @wraps(forward)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if tracing() or is_recording() or not _on_gpu(args, kwargs) or _saved_elsewhere():
            return forward(self, *args, **kwargs)
        try:
            recorder = self.__dict__[_NAME]
        except KeyError:
            recorder = self.__dict__[_NAME] = Recorder(LAUNCHES, _KEEP)
        return forward(self, *args, **kwargs) if recorder is None else recorder(self, args, kwargs)

    return cast(F, call)


def switch_off(module: nn.Module) -> None:
    """Run this module and those inside as they are written."""
    for one in module.modules():
        one.__dict__[_NAME] = None


def switch_on(module: nn.Module) -> None:
    """Undo :func:`switch_off`."""
    for one in module.modules():
        if one.__dict__.get(_NAME, 0) is None:
            del one.__dict__[_NAME]


def _on_gpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for x in chain(args, kwargs.values()):
        if isinstance(x, Tensor):
            return x.is_cuda or forced_backend() == "triton"
    return False


def _saved_elsewhere() -> bool:
    """Whether saved tensors go through hooks, such as those of ``checkpoint``."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _known(module: nn.Module) -> bool:
    """Whether all modules are of kinds whose calls depend on nothing but what a :class:`Recorder` looks at."""
    inside = list(module.modules())
    if any("forward" in m.__dict__ and "recorder" not in m.__dict__ for m in inside):
        return False
    return all(kind in _KNOWN or kind.__module__.startswith("fgnn.") for kind in {type(m) for m in inside})


def _record(module: nn.Module, args: Any, kwargs: Any, shared: dict[Any, Any]) -> ReplayedCall:
    return ReplayedCall(Origin(module, args, kwargs))


def _plain(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward: Any = type(module).forward
    return forward.__wrapped__(module, *args, **kwargs)


LAUNCHES = Form(_record, _plain, ("cuda", "cpu"), _known)
