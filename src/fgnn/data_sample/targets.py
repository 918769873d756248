"""Targets of a sample: a tensor, or several tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Targets = Tensor | dict[str, Tensor] | None


def as_targets(y: Any) -> Targets:
    """Targets from a tensor, an array or numbers, or a dict of them by name."""
    if isinstance(y, Mapping):
        return {name: _tensor(value, f"data.y[{name!r}]") for name, value in y.items()}
    return None if y is None else _tensor(y, "data.y")


def _tensor(y: Any, what: str) -> Tensor:
    if isinstance(y, Tensor):
        return y
    try:
        return torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(y).__name__
        if isinstance(y, tuple | list) and y and isinstance(y[0], Tensor):
            kind = f"{kind} of tensors {', '.join(str(tuple(x.shape)) for x in y if isinstance(x, Tensor))}"
        several = "; name several targets in a dict, {'energy': ..., 'forces': ...}" if what == "data.y" else ""
        raise ValueError(f"Expected {what} as a tensor or numbers (got {kind}){several}") from error


def map_targets(y: Targets, change: Callable[[Tensor], Any]) -> Any:
    """The same targets in other tensors."""
    if isinstance(y, dict):
        return {name: change(value) for name, value in y.items()}
    return None if y is None else change(y)


def join_targets(targets: Sequence[Targets], join: Callable[[str, Sequence[Tensor | None]], Tensor | None]) -> Targets:
    """The targets of several samples, joined name by name; ``join`` gets what an error calls them."""
    alone = [y for y in targets if not isinstance(y, dict)]
    if len(alone) == len(targets):
        return join("y", alone)
    named = [y for y in targets if isinstance(y, dict)]
    for k, y in enumerate(targets):
        if not isinstance(y, dict) or set(y) != set(named[0]):
            got = sorted(y) if isinstance(y, dict) else "none" if y is None else tuple(y.shape)
            raise ValueError(f"Expected data.y of {sorted(named[0])} in all samples (got {got} in sample {k})")
    joined = {name: join(f"y[{name!r}]", [one[name] for one in named]) for name in named[0]}
    return {name: value for name, value in joined.items() if value is not None}


def split_targets(y: Targets, variables: Sequence[int]) -> list[Targets]:
    """The targets of each sample, if they have one row for each sample or for each variable; else all for each."""
    if isinstance(y, dict):
        parts = {name: _split(value, variables) for name, value in y.items()}
        return [{name: rows[k] for name, rows in parts.items()} for k in range(len(variables))]
    return [None] * len(variables) if y is None else [*_split(y, variables)]


def _split(y: Tensor, variables: Sequence[int]) -> Sequence[Tensor]:
    if not y.dim() or y.shape[0] not in (len(variables), sum(variables)):
        return [y] * len(variables)
    return torch.split(y, list(variables)) if y.shape[0] == sum(variables) else y.unbind()


def targets_text(y: Targets) -> list[str]:
    """Names and shapes, for a sample's repr."""
    if isinstance(y, dict):
        return [f"y {name} {tuple(value.shape)}" for name, value in y.items()]
    return [] if y is None else [f"y {tuple(y.shape)}"]
