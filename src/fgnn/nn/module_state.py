"""What a recording of a module depends on besides its inputs: parameters, buffers, submodules, numbers and hooks."""

from __future__ import annotations

import weakref
from itertools import chain
from operator import is_, itemgetter
from typing import Any

from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SWITCHES = ("training", "launches", "recorder", "forward")
_ALWAYS = ("training", "_modules")  # attributes of every module; two, so that `itemgetter` gives a tuple
_NUMBERS = (bool, int, float, str, type(None))


class ModuleState:
    """A module at the time of its recordings.

    Attributes:
        devices: Those of its parameters and buffers; {None} if some are no plain tensors.
        tensors: Its parameters and buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        first, *rest = modules = list(module.modules())
        self._module, self._inside = weakref.ref(first), rest  # a strong reference would be a cycle
        self._dicts = [d for m in modules for d in (m._parameters, m._buffers, m._modules)]
        self._full = [d for d in self._dicts if d]
        self._hooks = [m.__dict__[name] for m in modules for name in _HOOKS]
        self._empty = [*self._hooks, *[d for d in self._dicts if not d]]
        self._values = self._now()
        self.tensors = [x for x in self._values if isinstance(x, Tensor)]
        self._places = self._where()
        named = [
            (k, name) for k, m in enumerate(modules) for name in m.__dict__
            if name not in _SWITCHES and not name.startswith("_")
        ]  # fmt: skip
        self._numbers = [(k, name) for k, name in named if isinstance(modules[k].__dict__[name], _NUMBERS)]
        self._others = [one for one in named if one not in set(self._numbers)]
        self._others += [(k, "forward") for k in range(1, len(modules))]  # the first may be under `record`
        self._read = self._attributes()
        of_each: list[list[str]] = [[*_ALWAYS] for _ in modules]
        for k, name in named:
            of_each[k].append(name)
        self._readers = [itemgetter(*names) for names in of_each]
        plain = all(type(x) in (Tensor, nn.Parameter) for x in self.tensors)
        self.devices: set[Any] = {x.device for x in self.tensors} if plain else {None}

    def _own(self) -> list[dict[str, Any]]:
        """The attributes of all modules."""
        module = self._module()
        return [{} if module is None else module.__dict__, *[m.__dict__ for m in self._inside]]

    def _now(self) -> list[Any]:
        return list(chain.from_iterable([d.values() for d in self._dicts]))

    def _where(self) -> list[tuple[int, bool]]:
        return [(x.data_ptr(), x.requires_grad) for x in self.tensors]

    def _attributes(self) -> tuple[list[Any], list[Any]]:
        own = self._own()
        return [own[k].get(name) for k, name in self._numbers], [own[k].get(name) for k, name in self._others]

    def holds(self) -> bool:
        """Whether all of them are still the same, in the same memory."""
        now, (numbers, others) = self._now(), self._attributes()
        same = len(now) == len(self._values) and all(map(is_, now, self._values))
        same = same and numbers == self._read[0] and all(map(is_, others, self._read[1]))
        return same and self._where() == self._places

    def look(self) -> list[Any] | None:
        """All that a recording depends on, to be compared with :meth:`is_as`; None if there are hooks."""
        if any(self._empty):
            return None
        found = list(chain.from_iterable([d.values() for d in self._full]))
        first = self._module()
        try:
            if first is not None:
                found += self._readers[0](first.__dict__)
            for module, read in zip(self._inside, self._readers[1:], strict=True):
                own = module.__dict__
                found += read(own)
                if "forward" in own:  # the first module may have another one, under `record`
                    found.append(own["forward"])
        except KeyError:  # an attribute is gone
            return None
        return found

    def is_as(self, before: list[Any] | None) -> bool:
        """Whether nothing has changed since :meth:`look`: all are the same objects, in the same memory.

        It takes less time than :meth:`holds`, :meth:`training` and :meth:`hooked`, which say what has changed.
        """
        now = self.look()
        if now is None or before is None or len(now) != len(before) or not all(map(is_, now, before)):
            return False
        return self._where() == self._places

    def training(self) -> tuple[bool, ...]:
        """The mode of every submodule."""
        return tuple([own["training"] for own in self._own()])

    def hooked(self) -> bool:
        """Whether a module has hooks, which a replay would not call."""
        return any(self._hooks)
