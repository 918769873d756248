"""Comparison of sets of tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def same_tensors(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """True if two sets of tensors are bitwise equal."""
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)
