"""Results with a row per model: what MAP answers and marginals have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

_TYPES = {float: torch.float64, int: torch.int64, bool: torch.bool}


def fill_rows(values: Mapping[str, Any], defaults: Mapping[str, float], like: Tensor) -> dict[str, Any]:
    """The values, with defaults added; numbers become tensors (B,) of the defaults' types, B rows as in ``like``."""
    filled = dict(values)
    for name, default in defaults.items():
        value = values.get(name, default)
        if not isinstance(value, Tensor):
            filled[name] = torch.full(like.shape[:1], value, dtype=_TYPES[type(default)], device=like.device)
    return filled


def cat_rows(parts: Sequence[Any]) -> dict[str, Tensor]:
    """The tensors of a dataclass, by field, for consecutive parts of a batch."""
    names = [f.name for f in fields(parts[0]) if f.type == "Tensor"]
    return {name: torch.cat([getattr(part, name) for part in parts]) for name in names}


def count_statuses(status: Sequence[str]) -> str:
    """How many models have each status, such as "3 optimal, 1 time-limit"."""
    return ", ".join(f"{status.count(s)} {s}" for s in dict.fromkeys(status))
