"""The tensors inside nested dataclasses and tuples: walked, cloned and copied together.

A `Structure` is a leaf: batches of one structure hold the same object, and what was compiled or recorded for it stays
valid. Numbers that the models of a batch share are walked, cloned and copied once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from fgnn.graph import Structure
from fgnn.pgm import BudgetBatch, TableBatch


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors of nested dataclasses and tuples, in order, without those of structures."""
    return (leaf for leaf in _leaves(value) if isinstance(leaf, Tensor))


def _leaves(value: Any) -> Iterator[Tensor | Structure]:
    if isinstance(value, Tensor | Structure):
        yield value
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _leaves(entry)
    elif isinstance(value, TableBatch | BudgetBatch):
        yield from (value.distinct(name) for name in value.names)
    elif is_dataclass(value):
        for entry in fields(value):
            yield from _leaves(getattr(value, entry.name))


def signature(value: Any) -> tuple[Any, ...]:
    """What must be equal for a recorded step to fit: structures, and the shapes, types and strides of tensors."""
    return tuple(
        id(leaf) if isinstance(leaf, Structure) else (tuple(leaf.shape), leaf.dtype, leaf.stride())
        for leaf in _leaves(value)
    )


def clone_tensors(value: Any) -> Any:
    """The same with tensors in memory of their own; structures stay the same objects."""
    if isinstance(value, Tensor):
        return value.clone()  # which keeps the strides of dense tensors, and so the signature
    if isinstance(value, tuple | list):
        return type(value)(clone_tensors(entry) for entry in value)
    if isinstance(value, TableBatch | BudgetBatch):
        return value.changed(len(getattr(value, value.names[0])), Tensor.clone)
    if is_dataclass(value) and not isinstance(value, type | Structure):
        return replace(value, **{f.name: clone_tensors(getattr(value, f.name)) for f in fields(value)})
    return value


def copy_tensors(target: Any, source: Any) -> None:
    """Copy the numbers of one batch into the memory of another of the same signature."""
    for to, from_ in zip(tensors_of(target), tensors_of(source), strict=True):
        if to.data_ptr() != from_.data_ptr():
            to.copy_(from_)
