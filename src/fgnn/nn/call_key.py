"""What a recorded call depends on: the arguments without the numbers in them, and torch's modes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.graph.derived import Derived
from fgnn.nn.backends.choice import forced_backend
from fgnn.runtime.float32 import allows_tf32

_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)
_EXACTLY = frozenset(_PLAIN)


class Unknown(Exception):
    """An argument of a type whose effect on a call is not known."""


def describe(value: Any, tensors: list[Tensor]) -> Hashable:
    """A key equal for arguments that differ in numbers alone; the tensors found are appended to ``tensors``.

    A graph or ``EdgeTypes`` is recognised by identity.
    """
    kind: Any = type(value)
    if kind is Tensor or kind is torch.nn.Parameter:
        tensors.append(value)
        return value.shape, value.dtype, value.device, value.requires_grad
    if kind in _EXACTLY:
        return kind, value
    if isinstance(value, tuple | list):
        return kind, *[describe(entry, tensors) for entry in value]
    if kind is dict or isinstance(value, Mapping):
        return tuple([(name, describe(entry, tensors)) for name, entry in value.items()])
    if isinstance(value, FactorGraph):
        return _known(value.structure)
    if isinstance(value, Derived):
        return _known(value)
    if isinstance(value, _PLAIN):
        return kind, value
    if kind not in SUPPORTED_NODES or kind is FactorGroup:  # other tensors too; scopes are no inputs of a recording
        raise Unknown(kind.__name__)
    entries, context = SUPPORTED_NODES[kind].flatten_fn(value)
    inside: list[Tensor] = []
    about = describe(context, inside)
    if inside:  # which a recording would keep
        raise Unknown(kind.__name__)
    return kind, about, *[describe(entry, tensors) for entry in entries]


def _known(value: Derived) -> Hashable:
    if value.handle < 0:
        raise Unknown("traced")
    return value.handle


def replaced(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same arguments with other tensors, in the order of :func:`describe`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, (FactorGraph, Derived, *_PLAIN)):
        return value
    if isinstance(value, Mapping):
        return {name: replaced(entry, tensors) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        make = getattr(type(value), "_make", type(value))  # named tuples take their fields one by one
        return make([replaced(entry, tensors) for entry in value])
    node = SUPPORTED_NODES[type(value)]
    entries, context = node.flatten_fn(value)
    return node.unflatten_fn([replaced(entry, tensors) for entry in entries], context)


def modes(kind: str) -> Hashable:
    """Torch's settings that decide which kernels run on this kind of device."""
    autocast = torch.is_autocast_enabled(kind)
    device = torch.cuda.current_device() if kind == "cuda" else -1
    return (
        torch.is_grad_enabled(),
        torch.get_autocast_dtype(kind) if autocast else None,
        torch.are_deterministic_algorithms_enabled(),
        allows_tf32(),
        forced_backend(),
        device,
        torch._C._cuda_getCurrentRawStream(device) if kind == "cuda" else None,
    )
