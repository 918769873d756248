"""Change every tensor inside a nested value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from fgnn.pgm import Kind

T = TypeVar("T")


def map_tensors(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """The same value with ``change`` applied to all tensors in it, through tuples, lists and dataclasses."""
    result: Any = value
    if isinstance(value, Tensor):
        result = change(value)
    elif isinstance(value, tuple | list):
        result = type(value)(map_tensors(item, change) for item in value)
    elif is_dataclass(value) and not isinstance(value, type | Kind):
        items = {f.name: map_tensors(getattr(value, f.name), change) for f in fields(value) if f.init}
        result = replace(value, **items)
    mapped: T = result
    return mapped


def take_models(value: T, which: Tensor) -> T:
    """The models ``which`` of a value whose tensors have the models as last axis, of length 1 where they share it."""
    return map_tensors(value, lambda x: x if x.shape[-1] == 1 else x.index_select(-1, which))
