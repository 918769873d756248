"""Launches of compiled kernels, without what Triton checks at every call.

Triton binds the arguments by name, describes each of them and looks up the kernel by that description as text, which
takes several times longer than the launch. A step of a small network has hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Compiled kernels and their compile-time arguments, by kernel, options, device, dtypes and numbers. Options are kept
# here too, so that no other dict can have the same id.
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], Mapping[str, Any]]] = {}
_MOST = 1 << 14


def launch(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Launch ``kernel[grid](*args, **options)``.

    Args:
        args: The first arguments: tensors, None and numbers.
        options: Compile-time arguments, the rest; the same object for equal options, such as a cached function returns.
    """
    if not hasattr(kernel, "device_caches"):  # the interpreter
        kernel[grid](*args, **options)
        return
    key: list[Any] = [id(kernel), id(options), torch.cuda.current_device()]
    address = 0
    for x in args:
        if isinstance(x, Tensor):
            key.append(x.dtype)
            address |= x.data_ptr()
        else:
            key.append(x)
    if address & 15:  # Triton compiles for tensors at multiples of 16 bytes, and again for others
        kernel[grid](*args, **options)
        return
    found = _compiled.get(at := tuple(key))
    if found is None:
        if len(_compiled) >= _MOST:
            _compiled.clear()
        rest = tuple([options[name] for name in kernel.arg_names[len(args) :]])
        _compiled[at] = kernel[grid](*args, **options), rest, options
        return
    binary, rest, _ = found
    binary[(*grid, 1, 1)[:3]](*args, *rest)


@cache
def constants(**options: Any) -> Mapping[str, Any]:
    """Compile-time arguments: the same object for equal ones."""
    return options
