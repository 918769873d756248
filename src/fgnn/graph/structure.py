"""Who is joined to whom: scopes by group, numbers of variables and states, and whatever is compiled from them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fgnn.graph.derived import Derived, tracing
from fgnn.graph.group import FactorGroup
from fgnn.graph.incidence import Hints, Incidence

# Structures in use, by content, and a few used lately: solving many models of one structure compiles it once.
_LIVE: WeakValueDictionary[tuple[bytes, torch.device], Structure] = WeakValueDictionary()
_RECENT: deque[Structure] = deque(maxlen=8)
_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class Structure(Derived):
    r"""The structure of a factor graph :math:`\mathcal{G} = (\mathcal{V}, \mathcal{C}, \mathcal{E})`, without numbers.

    Message wiring, elimination plans, kernel layouts and graphs of features are compiled from it once and kept by
    ``derived``. :meth:`interned` returns one object for equal content, so a structure is recognised by identity.

    Args:
        num_variables: N.
        groups: Factors by type.
        cardinalities: (N,) the number of states of each variable; None where variables have none.
        hints: What is known about the edges of a group beforehand, so that nothing is read back from the device.
    """

    num_variables: int
    groups: Mapping[str, FactorGroup]
    cardinalities: Tensor | None = None
    hints: Mapping[str, Hints] = field(default_factory=dict)
    _incidences: dict[str, Incidence] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_incidences"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        made = {
            name: Incidence.of(group, self.num_variables, self.hints.get(name, Hints()))
            for name, group in self.groups.items()
        }
        object.__setattr__(self, "_incidences", made)

    @property
    def device(self) -> torch.device:
        """Where the scopes are."""
        if self.cardinalities is not None:
            return self.cardinalities.device
        return next((group.device for group in self.groups.values()), torch.device("cpu"))

    @property
    def key(self) -> bytes:
        """A digest of the content, computed once; equal on every device."""
        return self.derived("key", self._digest)

    def _digest(self) -> bytes:
        digest = hashlib.blake2b(digest_size=24)
        parts: list[tuple[str, Tensor | None]] = [("cardinalities", self.cardinalities)]
        for name, group in self.groups.items():
            parts += [(name, group.scopes), (f"{name}.offsets", group.offsets)]
        digest.update(str(self.num_variables).encode())
        for name, tensor in parts:
            digest.update(f"{name}:{None if tensor is None else tuple(tensor.shape)};".encode())
            if tensor is not None:
                digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.digest()

    def interned(self) -> Structure:
        """The one structure of this content on this device: an equal one that is in use, or this one."""
        with _LOCK:
            same = _LIVE.setdefault((self.key, self.device), self)
            if same in _RECENT:
                _RECENT.remove(same)
            _RECENT.append(same)
        return same

    def to(self, device: torch.device | str) -> Structure:
        """The same structure on another device; the same object at every call."""
        target = torch.empty(0, device=device).device  # "cuda" names the current device
        if target == self.device:
            return self
        return self.derived(("device", target), lambda: self._moved(target))

    def _moved(self, device: torch.device) -> Structure:
        moved = Structure(
            self.num_variables,
            {name: group.to(device) for name, group in self.groups.items()},
            None if self.cardinalities is None else self.cardinalities.to(device),
            self.hints,
        )
        moved.derived("key", lambda: self.key)
        return moved.interned()

    def incidence(self, name: str) -> Incidence:
        """The edges of one group as index tensors."""
        if name not in self._incidences:
            raise ValueError(f"Expected one of the groups {list(self.groups)} (got {name!r})")
        return self._incidences[name]

    def variable_degree(self) -> Tensor:
        """How many edges each variable has over all groups.  # shape: (N,)"""
        return self._degree() if tracing() else self.derived("degree", self._degree)

    def _degree(self) -> Tensor:
        total = torch.zeros(self.num_variables, dtype=torch.long, device=self.device)
        for name in self.groups:
            total = total + self.incidence(name).degree("variable")
        return total

    def isolated(self) -> Tensor | None:
        """True for variables in no scope; None where there is no such variable.  # shape: (N,)"""
        if any(hints.covers_all for name, hints in self.hints.items() if name in self.groups):
            return None
        return self._degree() == 0 if tracing() else self.derived("isolated", self._isolated)

    def _isolated(self) -> Tensor | None:
        alone = self.variable_degree() == 0
        return alone if bool(alone.any()) else None
