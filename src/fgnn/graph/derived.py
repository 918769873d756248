"""What is compiled from a frozen object: made on first use, kept with it, dropped with it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakValueDictionary

import torch
from torch.autograd import forward_ad

T = TypeVar("T")

# Objects by handle: compiled code passes them to custom operators as integers.
_LIVE: WeakValueDictionary[int, Derived] = WeakValueDictionary()
_HANDLES = count()


def tracing() -> bool:
    """Whether a call is traced (``torch.compile``, ``torch.export``) or transformed (``torch.func``, forward-mode AD).

    Such calls must neither keep derived tensors nor branch on their values.
    """
    if torch.compiler.is_compiling() or transformed():
        return True
    return forward_ad._current_level >= 0


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is under way, also while ``torch.compile`` traces one."""
    return torch._C._functorch.peek_interpreter_stack() is not None


# torch.compile enters and leaves transforms as it traces them, and guards those that it is called in.
transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def exporting() -> bool:
    """Whether ``torch.export`` traces, in whichever thread."""
    return torch.compiler._is_exporting_flag


# torch.compile calls it while tracing. Before torch 2.12 it takes ``torch.compiler.is_exporting()`` to be true.
exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False, kw_only=True)
class Derived:
    """Base of the frozen objects that index tensors are compiled from.

    Attributes:
        handle: An integer that identifies the object within this process; see :func:`by_handle`. -1 for what exists
            only in a trace.
    """

    handle: int = field(init=False, repr=False)
    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)
    # Whether torch.compile may trace the making of objects of this class, which then have no handle.
    _in_trace: ClassVar[bool] = False

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        # Exported code uses no handles, and Dynamo traces no weak references. Objects of other threads and those made
        # while tensors alone are traced outlive the export.
        traced = torch.compiler.is_dynamo_compiling() and (cls._in_trace or exporting())
        handle = -1 if traced else next(_HANDLES)
        object.__setattr__(self, "handle", handle)
        if not traced:
            _LIVE[handle] = self
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what is derived from them, and the handle, belong to this process."""
        names = (f.name for f in fields(self))
        return {name: getattr(self, name) for name in names if name not in ("_derived", "handle")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in {**state, "_derived": {}}.items():
            object.__setattr__(self, name, value)

    def derived(self, name: Hashable, make: Callable[[], T]) -> T:
        """The value called ``name``, made once by ``make``. It must depend on this object alone."""
        if name not in self._derived:
            # Two threads may both make it; the first to finish is kept, so that its identity is stable.
            self._derived.setdefault(name, make())
        value: T = self._derived[name]
        return value

    def made(self, name: Hashable) -> Any:
        """The value called ``name`` if it has been made, else None."""
        return self._derived.get(name)

    def recent(self, name: Hashable, key: Hashable, make: Callable[[], T], keep: int = 4) -> T:
        """The value for ``key``, made by ``make`` unless it is among the ``keep`` values used last under ``name``.

        For what depends on a little more than this object, which ``key`` must then identify.
        """
        values: OrderedDict[Hashable, T] = self.derived(name, OrderedDict)
        value = values.pop(key, None)
        if value is None:
            value = make()
        values[key] = value
        if len(values) > keep:
            values.pop(next(iter(values)), None)
        return value


def by_handle(handle: int) -> Any:
    """The object with this handle."""
    return _LIVE[handle]
