"""What callers give to build graphs, refused with a way out where it is of another kind."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from fgnn.graph.group import FactorGroup


def number_of_variables(given: Any) -> int:
    """N, from any kind of integer."""
    count: int | None = given
    if type(given) is not int and not isinstance(given, torch.SymInt):
        try:
            count = None if isinstance(given, bool) else operator.index(given)
        except TypeError:
            count = None
    if count is None:
        raise ValueError(f"Expected num_variables as an integer (got {given!r})")
    if count < 0:
        raise ValueError(f"Expected num_variables >= 0 (got {count})")
    return count


def groups_by_name(given: Any) -> dict[str, FactorGroup]:
    """Groups on one device, each with a name."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise ValueError(f"Expected groups by name, as {{'pair': FactorGroup(scopes)}} (got a {kind})")  # noqa: TRY004
    for name, group in given.items():
        if not name:
            raise ValueError("Expected a name for every group (got an empty one)")
        if not isinstance(group, FactorGroup):
            raise ValueError(f"Expected a FactorGroup for group {name!r} (got {type(group).__name__})")  # noqa: TRY004
    devices = {group.device for group in given.values()}
    if len(devices) > 1:
        raise ValueError(f"Expected all groups on one device (got {sorted(map(str, devices))})")
    return dict(given)
