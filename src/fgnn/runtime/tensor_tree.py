"""The tensors inside nested dataclasses and tuples: walked, cloned and copied as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors of nested dataclasses and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from tensors_of(entry)
    elif is_dataclass(value):
        for entry in fields(value):
            yield from tensors_of(getattr(value, entry.name))


def shapes_of(value: Any) -> list[tuple[Any, ...]]:
    """What must be equal for a recording to fit."""
    return [(tuple(t.shape), t.dtype, t.stride()) for t in tensors_of(value)]


def clone_tensors(value: Any) -> Any:
    """The same structure with memory of its own; integer index tensors are shared, for they name the structure."""
    from dataclasses import replace

    if isinstance(value, Tensor):
        return _with_own_memory(value)
    if isinstance(value, tuple | list):
        return type(value)(clone_tensors(entry) for entry in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: clone_tensors(getattr(value, f.name)) for f in fields(value) if f.name not in _SHARED}
        return replace(value, **changed)
    return value


# Structure, not numbers: recordings hold for one structure, and caches know it by these very tensors.
_SHARED = ("scopes", "cardinalities")


def copy_tensors(target: Any, source: Any) -> None:
    """Copy the numbers of one batch into the memory of another of the same shapes."""
    for mine, theirs in zip(tensors_of(target), tensors_of(source), strict=True):
        if mine.data_ptr() == theirs.data_ptr():
            continue
        if mine.dim() and mine.shape[0] > 1 and mine.stride(0) == 0:
            mine, theirs = mine[:1], theirs[:1]
        mine.copy_(theirs)


def _with_own_memory(tensor: Tensor) -> Tensor:
    if tensor.dim() and tensor.shape[0] > 1 and tensor.stride(0) == 0:
        return tensor[:1].clone().expand(tensor.shape)
    # clone keeps the strides of dense tensors, so that shapes_of agrees with later batches
    return tensor.clone()
