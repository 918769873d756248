"""What a recording of a module depends on besides its inputs: parameters, buffers, submodules, numbers and hooks."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

from torch import Tensor, nn

_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = itemgetter("_parameters", "_buffers", "_modules")
_SWITCHES = ("training", "launches", "recorder", "forward")
_NUMBERS = (bool, int, float, str)
_FORM = (Tensor.stride, attrgetter("shape"), attrgetter("requires_grad"))


class ModuleState:
    """A module at the time of its recordings, without a reference to it: it keeps this object.

    Attributes:
        devices: Those of its parameters and buffers; {None} if some are no plain tensors.
        tensors: Its parameters and buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        _, *self._inside = modules = list(module.modules())
        self.tensors = [
            x for m in modules for table in _TABLES(m.__dict__) for x in table.values() if isinstance(x, Tensor)
        ]
        plain = all(type(x) in (Tensor, nn.Parameter) for x in self.tensors)
        self.devices: set[Any] = {x.device for x in self.tensors} if plain else {None}
        self._addresses, self._forms = list(map(Tensor.data_ptr, self.tensors)), self._form()
        self._readers = []
        for m in modules:
            names = [name for name in m.__dict__ if name not in _SWITCHES and not name.startswith("_")]
            self._readers.append(itemgetter("_parameters", "_modules", *names))  # two or more, so that it gives a tuple
        self._first = self.look(module)

    def _form(self) -> list[Any]:
        return [list(map(read, self.tensors)) for read in _FORM]

    def in_place(self) -> bool:
        """Whether parameters and buffers are where they were: others may not be there any more."""
        return list(map(Tensor.data_ptr, self.tensors)) == self._addresses

    def look(self, module: nn.Module) -> list[Any] | None:
        """All that a recording depends on but memory, the mode of every module first; None if there are hooks."""
        modules = [module, *self._inside]
        owns = [m.__dict__ for m in modules]
        if any(chain.from_iterable(map(_HOOKS, owns))):  # a replay would not call them
            return None
        found = [own["training"] for own in owns]
        found += map(type, modules)
        try:
            for own, read in zip(owns, self._readers, strict=True):
                found += read(own)
        except KeyError:  # an attribute is gone
            return []
        for table in chain.from_iterable(map(_TABLES, owns)):
            if table:
                found += table.values()
        found += [own["forward"] for own in owns[1:] if "forward" in own]  # the first may be under `record`
        return found

    def training(self, found: list[Any]) -> tuple[bool, ...]:
        """The mode of every module, as :meth:`look` found it."""
        return tuple(found[: len(self._readers)])

    def holds(self, found: list[Any]) -> bool:
        """Whether all but the modes are what they were at first, or equal numbers, in the same memory."""
        if self._first is None or len(found) != len(self._first):
            return False
        count = len(self._readers)
        return all(map(_same, found[count:], self._first[count:])) and self.in_place() and self._form() == self._forms

    def is_as(self, found: list[Any] | None, before: list[Any]) -> bool:
        """Whether two looks found the same objects, of the same form; takes less time than :meth:`holds`."""
        if found is None or len(found) != len(before) or not all(map(is_, found, before)):
            return False
        return self._form() == self._forms


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _NUMBERS and one == other)
