"""A switch that makes a module record its calls as CUDA graphs by itself and replay them."""

from __future__ import annotations

import warnings
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fgnn.graph import tracing
from fgnn.nn.call_key import describe, replaced
from fgnn.nn.recorded_call import ENGINES, Engine, RecordedCall
from fgnn.nn.recorder import Form, Recorder
from fgnn.nn.replays import switch_off, switch_on

M = TypeVar("M", bound=nn.Module)


def record(module: M, on: bool = True) -> M:
    """Make a module record its calls on a GPU as CUDA graphs, and replay them; returns the module.

    A layer on a small graph is a few dozen kernels of microseconds each, and launching them one by one takes longer
    than running them; a CUDA graph launches all at once. The third call with the same graph, shapes, autocast and mode
    is recorded, forward and backward, and from then on such calls are replayed. The numbers are the same, and so is
    the loop around it: gradients accumulate, optimisers, ``DistributedDataParallel``, clipping, ``no_grad`` and
    ``train`` / ``eval`` work as before. Results and gradients are the caller's, as without a recording.

    Every other call runs as without the switch: other shapes, a second call before the backward pass of the first,
    hooks on submodules, ``torch.compile``, ``torch.func``, a CPU, or a module that cannot be recorded because it
    synchronises with the host. New parameters (``.to``, another ``requires_grad``) and new numbers, such as a dropout
    rate, discard the recordings. Up to four are kept; together they hold the memory of the largest step.

    The backward pass of a recording runs once for each call and cannot be differentiated.

    Args:
        module: Any module; it may take graphs, tensors, ``Data``, and dicts and tuples of them.
        on: False removes the switch and its recordings. Layers and networks then run as they are written: without it,
            they replay the launches of earlier calls by themselves.

    Example:
        >>> net = fgnn.nn.record(net)  # doctest: +SKIP
        >>> for batch in loader:  # doctest: +SKIP
        ...     loss = criterion(net(*batch.inputs), batch.y)
        ...     loss.backward()
    """
    module.__dict__.pop("recorder", None)
    module.__dict__.pop("forward", None)
    (switch_on if on else switch_off)(module)
    if on:
        module.__dict__["recorder"] = Recorder(GRAPHS)
        module.__dict__["forward"] = MethodType(forward, module)
    return module


def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The module's own result, replayed if there is a recording of such a call."""
    if tracing():
        return type(self).forward(self, *args, **kwargs)
    recorder: Any = self.recorder
    return recorder(self, args, kwargs)


def record_call(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    engines: dict[torch.device, Engine],
    copies: bool = True,
) -> RecordedCall:
    """Record calls like this one; see :class:`RecordedCall`. Raises ``RuntimeError`` if that fails.

    Recordings by the same of the ``engines`` share the memory of their activations.
    """
    tensors: list[Tensor] = []
    describe((args, kwargs), tensors)
    device, grad = tensors[0].device, torch.is_grad_enabled()
    if device not in engines:
        engines[device] = ENGINES[device.type](device)
    with torch.inference_mode(False), torch.set_grad_enabled(grad), warnings.catch_warnings():
        # Gradients are computed on a stream other than that of the nodes that accumulate them, but nothing
        # accumulates here.
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
        held = [x.detach().clone().requires_grad_(x.requires_grad and grad) for x in tensors]
        inner, options = replaced((args, kwargs), iter(held))
        autocast, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

        def call(parameters: dict[str, Tensor]) -> Any:
            # without the cache of autocast, which a recording forbids
            with torch.autocast(device.type, dtype, enabled=autocast, cache_enabled=False):
                return torch.func.functional_call(module, parameters, inner, options)

        with torch.autocast(device.type, enabled=False):
            return RecordedCall(module, call, held, engines[device], copies)


def _own_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(module).forward(module, *args, **kwargs)


def _any(module: nn.Module) -> bool:
    return True


GRAPHS = Form(record_call, _own_forward, ENGINES, _any)
