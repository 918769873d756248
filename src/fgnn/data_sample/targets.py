"""Targets of a sample: a tensor, or several tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Targets = Tensor | dict[str, Tensor] | None
Rows = list[int | None]  # of each sample in a batch of targets; None for a number
TargetRows = Rows | dict[str, Rows] | None


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


def target_rows(targets: Sequence[Targets]) -> TargetRows:
    """The rows that each sample has in the joined targets."""
    first = targets[0]
    if isinstance(first, dict):
        named: Any = targets
        return {name: _rows([y[name] for y in named]) for name in first}
    return None if first is None else _rows(targets)


def _rows(targets: Sequence[Any]) -> Rows:
    return [y.shape[0] if y.dim() else None for y in targets]


def split_targets(y: Targets, rows: TargetRows, variables: Sequence[int]) -> list[Targets]:
    """The targets of each sample, by their rows; where these are not known, one for each variable or each sample."""
    if isinstance(y, dict):
        known = rows if isinstance(rows, dict) else {}
        parts = {name: _split(f"data.y[{name!r}]", value, known.get(name), variables) for name, value in y.items()}
        return [{name: values[k] for name, values in parts.items()} for k in range(len(variables))]
    known_rows = rows if isinstance(rows, list) else None
    return [None] * len(variables) if y is None else [*_split("data.y", y, known_rows, variables)]


def _split(what: str, y: Tensor, rows: Rows | None, variables: Sequence[int]) -> Sequence[Tensor]:
    count = y.shape[0] if y.dim() else None
    sizes = [1 if size is None else size for size in rows or ()]
    if rows is not None and len(rows) == len(variables) and sum(sizes) == count:
        parts = torch.split(y, sizes)
        return [part[0] if size is None else part for part, size in zip(parts, rows, strict=True)]
    if count == sum(variables):
        return torch.split(y, list(variables))
    if count == len(variables):
        return y.unbind()
    expected = f"a row for each of {len(variables)} samples or {sum(variables)} variables"
    raise ValueError(f"Expected {what} with {expected}, or data.y_rows, to unbatch (got {tuple(y.shape)})")


def targets_text(y: Targets) -> list[str]:
    """Names and shapes, for a sample's repr."""
    if isinstance(y, dict):
        return [f"y {name} {tuple(value.shape)}" for name, value in y.items()]
    return [] if y is None else [f"y {tuple(y.shape)}"]
