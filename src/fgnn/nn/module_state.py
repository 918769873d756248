"""What a recording of a module depends on besides its inputs: parameters, buffers, submodules, numbers and hooks."""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NUMBERS = (bool, int, float, str, type(None))


class ModuleState:
    """A module at the time of its recordings.

    Attributes:
        devices: Those of its parameters and buffers; {None} if some are no plain tensors.
        tensors: Its parameters and buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        self.modules = list(module.modules())
        self._dicts = [d for m in self.modules for d in (m._parameters, m._buffers, m._modules)]
        self._hooks = [m.__dict__[name] for m in self.modules for name in _HOOKS]
        self._values = self._now()
        self.tensors = [x for x in self._values if isinstance(x, Tensor)]
        self._places = self._where()
        self._named = [
            (m.__dict__, name) for m in self.modules for name, x in m.__dict__.items()
            if isinstance(x, _NUMBERS) and name != "training" and not name.startswith("_")
        ]  # fmt: skip
        self._numbers = self._read()
        plain = all(type(x) in (Tensor, nn.Parameter) for x in self.tensors)
        self.devices: set[Any] = {x.device for x in self.tensors} if plain else {None}

    def _now(self) -> list[Any]:
        return list(chain.from_iterable([d.values() for d in self._dicts]))

    def _where(self) -> list[tuple[int, bool]]:
        return [(x.data_ptr(), x.requires_grad) for x in self.tensors]

    def _read(self) -> list[Any]:
        return [d.get(name) for d, name in self._named]

    def holds(self) -> bool:
        """Whether all of them are still the same, in the same memory."""
        now = self._now()
        same = len(now) == len(self._values) and all(map(is_, now, self._values))
        return same and self._where() == self._places and self._read() == self._numbers

    def training(self) -> tuple[bool, ...]:
        """The mode of every submodule."""
        return tuple([m.training for m in self.modules])

    def hooked(self) -> bool:
        """Whether a module has hooks, which a replay would not call."""
        return any(self._hooks)


def globally_hooked() -> bool:
    """Whether something wants to see every module's call."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
