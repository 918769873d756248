"""Bound the memory of a network while it is built, before a wrong size allocates gigabytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions whose arguments say how large their result will be.
_BY_SIZE = (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full)


class TensorLimit(TorchFunctionMode):
    """Refuse, inside a ``with`` block, to create more than ``most`` entries of tensors in all.

    Layers create their parameters by size, so that a network beyond the limit is refused before the tensor that
    exceeds it is allocated. Raises a ValueError.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.created = most, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _BY_SIZE:
            self.created += _entries(kwargs.get("size", args[:1] if func is torch.full else args))
            self._check(self.created)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self._check(result.numel())
        return result

    def _check(self, entries: int) -> None:
        if entries > self.most:
            raise ValueError(f"Expected a network of at most {self.most:,} numbers (got {entries:,} or more)")


def _entries(size: Any) -> int:
    """The product of sizes, given one by one or as a sequence."""
    if len(size) == 1 and not isinstance(size[0], int):
        (size,) = size
    return math.prod(int(n) for n in size)
