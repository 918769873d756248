"""One factor type: the scopes s(c) of its factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.graph.derived import tracing


@dataclass(frozen=True, eq=False, init=False)
class FactorGroup:
    """Factors of one type, each joined to the variables of its scope :math:`s(c)`.

    Args:
        scopes: (C, A) integers, row c the variables of factor c; or any iterable of lists, whose lengths may differ;
            or, with ``offsets``, all scopes end to end, (E,).
        offsets: (C + 1,), where each scope begins and the last one ends; None if all scopes have the same length.

    Edges are the pairs (c, i) with i in s(c), numbered factor by factor in the order of the scopes.
    """

    scopes: Tensor
    offsets: Tensor | None

    def __init__(
        self,
        scopes: Tensor | NDArray[Any] | Iterable[Sequence[int]],
        offsets: Tensor | NDArray[Any] | Sequence[int] | None = None,
    ) -> None:
        if offsets is None and not isinstance(scopes, Tensor | np.ndarray):
            scopes, offsets = _from_lists(scopes)
        table = _integers(scopes, "scopes")
        ptr = None if offsets is None else _integers(offsets, "offsets").to(table.device)
        if ptr is not None:
            _check_offsets(table, ptr)
        elif table.dim() != 2:
            raise ValueError(f"Expected scopes of shape (C, A), or ragged scopes (got shape {tuple(table.shape)})")
        object.__setattr__(self, "scopes", table)
        object.__setattr__(self, "offsets", ptr)

    @classmethod
    def known(cls, scopes: Tensor, offsets: Tensor | None = None) -> FactorGroup:
        """A group whose scopes and offsets are known to be valid: nothing is checked or read back from a device."""
        group = cls.__new__(cls)
        object.__setattr__(group, "scopes", scopes)
        object.__setattr__(group, "offsets", offsets)
        return group

    @classmethod
    def ragged(cls, variables: Tensor, offsets: Tensor) -> FactorGroup:
        """Scopes of any length, end to end in ``variables`` (E,), factor c at ``offsets[c]:offsets[c + 1]``."""
        return cls(scopes=variables, offsets=offsets)

    @property
    def num_factors(self) -> int:
        """C, the number of factors."""
        return self.scopes.shape[0] if self.offsets is None else self.offsets.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """E, the total length of all scopes."""
        return self.scopes.numel()

    @property
    def arity(self) -> int | None:
        """A, the length of every scope; None if they are ragged."""
        return self.scopes.shape[1] if self.offsets is None else None

    @property
    def device(self) -> torch.device:
        """Where the scopes are."""
        return self.scopes.device

    def map(self, change: Callable[[Tensor], Tensor]) -> FactorGroup:
        """The same scopes in other tensors, such as copies on another device."""
        return FactorGroup.known(change(self.scopes), None if self.offsets is None else change(self.offsets))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FactorGroup:
        """The same scopes on another device."""
        return self.map(lambda x: x.to(device, non_blocking=non_blocking))

    def __reduce__(self) -> tuple[Any, ...]:
        return FactorGroup, (self.scopes, self.offsets)

    def factor_ptr(self) -> Tensor:
        """Where the edges of each factor begin and the last ones end.  # shape: (C + 1,)"""
        if self.offsets is not None:
            return self.offsets
        count, arity = self.scopes.shape
        return torch.arange(count + 1, device=self.device) * arity

    def factor_index(self) -> Tensor:
        """The factor of each edge.  # shape: (E,)"""
        if self.offsets is not None:
            return segment_index(self.offsets, self.num_edges)
        factors = torch.arange(self.num_factors, device=self.device)
        return factors.unsqueeze(1).expand_as(self.scopes).reshape(-1)

    def lists(self) -> list[list[int]]:
        """The scopes as plain lists."""
        if self.offsets is None:
            return [[int(i) for i in row] for row in self.scopes.tolist()]
        flat, ptr = self.scopes.tolist(), self.offsets.tolist()
        return [flat[ptr[c] : ptr[c + 1]] for c in range(self.num_factors)]

    def shifted(self, by: int) -> FactorGroup:
        """The same factors over variables numbered from ``by``."""
        return FactorGroup.known(self.scopes + by, self.offsets)

    def check(self, num_variables: int, name: str) -> None:
        """Refuse variables that do not exist and scopes with a repeated variable."""
        flat = self.scopes.reshape(-1)
        if not flat.numel():
            return
        wrong = (flat < 0) | (flat >= num_variables)
        if bool(wrong.any()):
            e = int(wrong.nonzero()[0])
            raise ValueError(
                f"Expected variables 0 to {num_variables - 1} in group {name!r} "
                f"(got {int(flat[e])} in the scope of factor {int(self.factor_index()[e])})"
            )
        key = (self.factor_index() * num_variables + flat).sort().values
        twice = key[1:] == key[:-1]
        if bool(twice.any()):
            pair = int(key[1:][twice][0])
            index = self.num_factors == 2 and (self.arity or 0) > 2
            raise ValueError(
                f"Expected each variable at most once in a scope "
                f"(got variable {pair % num_variables} twice in factor {pair // num_variables} of group {name!r})"
                f"{'; of an edge_index (2, E), give FactorGroup(edge_index.T)' if index else ''}"
            )


# torch.load(..., weights_only=True) may construct groups: the constructor checks what it is given.
torch.serialization.add_safe_globals([FactorGroup])


def segment_index(ptr: Tensor, count: int) -> Tensor:
    """The segment of each of ``count`` rows; segment s is rows ``ptr[s]`` to ``ptr[s + 1]``.  # shape: (count,)"""
    if tracing():  # ONNX cannot repeat rows by counts that it reads
        inner = ptr[1:-1]
        return ptr.new_zeros(count + 1).scatter_add(0, inner, torch.ones_like(inner)).cumsum(0)[:count]
    segments = torch.arange(ptr.shape[0] - 1, device=ptr.device)
    return segments.repeat_interleave(ptr.diff(), output_size=count)


def _check_offsets(variables: Tensor, offsets: Tensor) -> None:
    if variables.dim() != 1 or offsets.dim() != 1 or offsets.numel() == 0:
        raise ValueError(
            f"Expected ragged scopes as variables (E,) and offsets (C + 1,) "
            f"(got shapes {tuple(variables.shape)} and {tuple(offsets.shape)})"
        )
    ends = [int(offsets[0]), int(offsets[-1])]
    if ends != [0, variables.numel()] or bool((offsets.diff() < 0).any()):
        raise ValueError(
            f"Expected offsets that rise from 0 to {variables.numel()}, the number of edges "
            f"(got {offsets.tolist() if offsets.numel() < 9 else f'{ends[0]} to {ends[1]}'})"
        )


def _from_lists(given: Any) -> tuple[Tensor, Tensor | None]:
    """Scopes as a table if all have the same length, else end to end with offsets."""
    if not isinstance(given, Iterable):
        kind = type(given).__name__
        raise ValueError(f"Expected scopes as a table (C, A) or a list of lists of variables (got {kind})")  # noqa: TRY004
    scopes = list(given)  # an iterator can be read only once
    for scope in scopes:
        if not isinstance(scope, Sequence | np.ndarray | Tensor):
            raise ValueError(f"Expected a list of scopes, each a list of variables (got {scope!r} for one)")  # noqa: TRY004
    rows = [[int(i) if not isinstance(i, float) else i for i in scope] for scope in scopes]
    sizes = {len(row) for row in rows}
    if len(sizes) <= 1:
        return _tensor(rows).reshape(len(rows), sizes.pop() if sizes else 0), None
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows]).tolist()])
    return _tensor([i for row in rows for i in row]), offsets


def _tensor(values: list[Any]) -> Tensor:
    tensor = torch.tensor(values)
    return tensor if tensor.numel() else tensor.long()


def _integers(values: Any, what: str) -> Tensor:
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(values)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"Expected integer {what} (got {tensor.dtype})")
    return tensor.long()
