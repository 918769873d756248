"""What is compiled from a frozen object: made on first use, kept with it, dropped with it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Derived:
    """Base of the frozen objects that index tensors are compiled from."""

    _derived: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def derived(self, name: Hashable, make: Callable[[], T]) -> T:
        """The value called ``name``, made once by ``make``. It must depend on this object alone."""
        if name not in self._derived:
            # Two threads may both make it; the first to finish is kept, so that its identity is stable.
            self._derived.setdefault(name, make())
        value: T = self._derived[name]
        return value

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
