"""Launches of compiled kernels, without what Triton checks at every call.

Triton binds the arguments by name, describes each of them and looks up the kernel by that description as text, which
takes several times longer than the launch. A step of a small network has hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from threading import local as thread_local
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Compiled kernels and their compile-time arguments, by kernel, options, device, dtypes and numbers. Options are kept
# here too, so that no other dict can have the same id.
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...], Mapping[str, Any]]] = {}
_MOST = 1 << 14
_LAUNCHER_TAKES = ("self", "gridX", "gridY", "gridZ", "stream", "function")


class Launched(NamedTuple):
    """A launch that can be repeated: a compiled kernel and its compile-time arguments, or a call of the interpreter."""

    grid: tuple[int, ...]
    binary: Any = None
    rest: tuple[Any, ...] = ()
    device: int = -1
    interpreted: Callable[..., None] | None = None


class _Local(thread_local):
    """Who records the launches of this thread; while ``notes`` is a dict, they are only noted, one of each kind."""

    tape: Any = None
    notes: dict[tuple[Any, ...], tuple[Any, ...]] | None = None


local = _Local()


def launch(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Launch ``kernel[grid](*args, **options)``.

    Args:
        args: The first arguments: tensors, None and numbers.
        options: Compile-time arguments, the rest; the same object for equal options, such as a cached function returns.
    """
    tape = local.tape
    if tape is None:
        _launch(kernel, grid, args, options)
        return
    tape.paused = True
    launched = _launch(kernel, grid, args, options)
    tape.paused = False
    tape.launched(launched, args)


def prepared(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], options: Mapping[str, Any]) -> Launched | None:
    """Launch on tensors that stand for others, unnoticed by any tape: what a launch on those repeats."""
    return _launch(kernel, grid, args, options)


def _launch(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], options: Mapping[str, Any]) -> Launched | None:
    if not hasattr(kernel, "device_caches"):  # the interpreter
        call = partial(kernel[grid], **options)
        call(*args)
        return Launched(grid, interpreted=call)
    device = torch.cuda.current_device()
    first = next(x for x in args if isinstance(x, Tensor))
    if first.is_cuda and first.device.index != device:  # Triton launches on the current device
        with torch.cuda.device(first.device):
            return _launch(kernel, grid, args, options)
    key: list[Any] = [id(kernel), id(options), device]
    address = 0
    for x in args:
        if isinstance(x, Tensor):
            key.append(x.dtype)
            address |= x.data_ptr()
        else:
            key.append(x)
    at = tuple(key)
    if local.notes is not None:
        if address & 15 == 0:  # an empty tensor stands for any that is aligned, and keeps no memory
            args = [x.new_empty(0) if isinstance(x, Tensor) else x for x in args]
        local.notes.setdefault((*at, address & 15), (kernel, grid, args, options))
        return None
    if address & 15:  # Triton compiles for tensors at multiples of 16 bytes, and again for others
        kernel[grid](*args, **options)
        return None
    found = _compiled.get(at)
    whole = (*grid, 1, 1)[:3]
    if found is None:
        if len(_compiled) >= _MOST:
            _compiled.clear()
        rest = tuple([options[name] for name in kernel.arg_names[len(args) :]])
        binary = kernel[grid](*args, **options)
        _compiled[at] = binary, rest, options
    else:
        binary, rest, _ = found
        binary[whole](*args, *rest)
    return Launched(whole, binary, rest, device)


def caller_of(binary: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What launches a compiled kernel, given a grid and a stream, and what it takes before the kernel's arguments.

    Up to version 3.6, Triton's launcher looks for scratch memory, which few kernels have, and calls a function in C.
    Without the detour a launch takes a tenth to a third less time.
    """
    run = binary.run
    given = (binary.packed_metadata, None, None, None)  # no hooks
    code = getattr(type(run).__call__, "__code__", None)
    if code is None or code.co_varnames[: code.co_argcount] != _LAUNCHER_TAKES:
        return run, (binary.function, *given)
    scratch = run.global_scratch_size or getattr(run, "profile_scratch_size", True)
    if scratch or not isinstance(run.launch, BuiltinFunctionType):
        return run, (binary.function, *given)
    return run.launch, (binary.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *given)


@cache
def constants(**options: Any) -> Mapping[str, Any]:
    """Compile-time arguments: the same object for equal ones."""
    return options
