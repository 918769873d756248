"""A switch that makes a module record its calls as CUDA graphs by itself and replay them."""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Hashable
from threading import Lock
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from fgnn.graph import tracing
from fgnn.nn.call_key import Unknown, describe, modes, replaced
from fgnn.nn.recorded_call import ENGINES, Engine, RecordedCall

M = TypeVar("M", bound=nn.Module)
_WARM_UP = 2  # plain calls before a recording: they compile kernels and build index tensors
_FAILURES = 3  # after this many, a module is no longer recorded
_COUNTED = 64  # kinds of calls that are counted


def record(module: M, on: bool = True) -> M:
    """Make a module record its calls on a GPU as CUDA graphs, and replay them; returns the module.

    A layer on a small graph is a few dozen kernels of microseconds each, and launching them one by one takes longer
    than running them; a CUDA graph launches all at once. The third call with the same graph, shapes, autocast and mode
    is recorded, forward and backward, and from then on such calls are replayed. The numbers are the same, and so is
    the loop around it: gradients accumulate, optimisers, ``DistributedDataParallel``, clipping, ``no_grad`` and
    ``train`` / ``eval`` work as before. Results and gradients are the caller's, as without a recording.

    Every other call runs as without the switch: other shapes, a second call before the backward pass of the first,
    hooks on submodules, ``torch.compile``, ``torch.func``, a CPU, or a module that cannot be recorded because it
    synchronises with the host. New parameters (``.to``, another ``requires_grad``) discard the recordings. Up to four
    recordings are kept; together they hold the memory of the largest step.

    A recording keeps the Python numbers it saw, such as a dropout rate. Its backward pass runs once for each call and
    cannot be differentiated.

    Args:
        module: Any module; it may take graphs, tensors, ``Data``, and dicts and tuples of them.
        on: False removes the switch and its recordings.

    Example:
        >>> net = fgnn.nn.record(net)  # doctest: +SKIP
        >>> for batch in loader:  # doctest: +SKIP
        ...     loss = criterion(net(*batch.inputs), batch.y)
        ...     loss.backward()
    """
    module.__dict__.pop("recorder", None)
    module.__dict__.pop("forward", None)
    if on:
        module.__dict__["recorder"] = Recorder()
        module.__dict__["forward"] = MethodType(forward, module)
    return module


def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The module's own result, replayed if there is a recording of such a call."""
    if tracing():
        return type(self).forward(self, *args, **kwargs)
    recorder: Any = self.recorder
    return recorder(self, args, kwargs)


class Recorder:
    """The recordings of one module; see :func:`record`. Its length is their number.

    Attributes:
        reason: Why the last attempt to record failed; None if none did.
        keep: The number of recordings that are kept.
    """

    def __init__(self, keep: int = 4) -> None:
        self.reason: str | None = None
        self.keep = keep
        self._calls: OrderedDict[Hashable, RecordedCall] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._failures = 0
        self._state: _State | None = None
        self._last: RecordedCall | None = None  # replayed last
        self._engines: dict[torch.device, Engine] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def __deepcopy__(self, memo: Any) -> Recorder:
        return Recorder(self.keep)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (self.keep,)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's result: replayed, or its own forward."""
        # The lock is taken while the module is being recorded, and during another thread's call.
        if self._failures < _FAILURES and self._lock.acquire(blocking=False):
            try:
                tensors: list[Tensor] = []
                call = self._find(module, args, kwargs, tensors)
                if call is not None:
                    return call(tensors)
            finally:
                self._lock.release()
        return type(module).forward(module, *args, **kwargs)

    def _find(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]
    ) -> RecordedCall | None:
        """The recording of such a call, made now if it is time; its inputs are appended to ``tensors``."""
        if self._last is not None and self._last.pending:
            return None  # recordings share their memory, and backward still reads it
        try:
            arguments = describe((args, kwargs), tensors)
        except Unknown:
            return None
        devices = {x.device for x in tensors}
        if len(devices) != 1 or not self._can_replay(device := devices.pop(), module):
            return None
        assert self._state is not None
        key = arguments, modes(device.type), self._state.training()
        call = self._calls.get(key)
        if call is None:
            call = self._record(key, module, args, kwargs)
        if call is not None:
            self._calls.move_to_end(key)
            self._last = call
        return call

    def _can_replay(self, device: torch.device, module: nn.Module) -> bool:
        if device.type not in ENGINES or torch.is_anomaly_enabled() or _observed():
            return False
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        if self._state is None or not self._state.holds():
            self._calls.clear()
            self._seen.clear()
            self._state = _State(module)
        return self._state.devices <= {device} and not self._state.hooked()

    def _record(
        self, key: Hashable, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RecordedCall | None:
        if len(self._seen) >= _COUNTED and key not in self._seen:
            self._seen.clear()
        self._seen[key] += 1
        if self._seen[key] <= _WARM_UP:
            return None
        del self._seen[key]
        if len(self._calls) >= self.keep:
            self._calls.popitem(last=False)
        try:
            self._calls[key] = record_call(module, args, kwargs, self._engines)
        except RuntimeError as error:
            self.reason = str(error).splitlines()[0]
            self._failures += 1
        return self._calls.get(key)


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


class _State:
    """A module's parameters, buffers and submodules at the time of the recordings."""

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._dicts = [d for m in self._modules for d in (m._parameters, m._buffers, m._modules)]
        self._values = [value for d in self._dicts for value in d.values()]
        self._tensors = [x for x in self._values if isinstance(x, Tensor)]
        self._ids, self._places = self._now()
        plain = all(type(x) in (Tensor, nn.Parameter) for x in self._tensors)
        self.devices = {x.device for x in self._tensors} if plain else {None}

    def _now(self) -> tuple[list[int], list[tuple[int, bool]]]:
        ids = [id(value) for d in self._dicts for value in d.values()]
        return ids, [(x.data_ptr(), x.requires_grad) for x in self._tensors]

    def holds(self) -> bool:
        """Whether all of them are still the same, in the same memory."""
        ids, places = self._now()
        return ids == self._ids and places == self._places

    def training(self) -> tuple[bool, ...]:
        """The mode of every submodule."""
        return tuple([m.training for m in self._modules])

    def hooked(self) -> bool:
        """Whether a module has hooks, which a replay would not call."""
        return any(
            m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
            for m in self._modules
        )


def _observed() -> bool:
    """Whether something wants to see every operation or every module's call."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )
