"""Recordings of a module's calls: when to make one, and when it stands for a call."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from threading import local as thread_local
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fgnn.nn.call_key import Unknown, describe, modes
from fgnn.nn.module_state import ModuleState
from fgnn.nn.plain_modules import globally_hooked

_WARM_UP = 2  # plain calls before a recording: they compile kernels and build index tensors
_FAILURES = 3  # after this many, a kind of call is no longer recorded
_MOST_FAILURES = 24  # and after this many, none
_PRICE, _CREDIT = 20, 640  # replays that pay for giving a recording up, and how many are given in advance
_CHANGES = 100  # after this many new parameters, too
_COUNTED = 64  # kinds of calls that are counted

NOT_REPLAYED: Any = object()  # the module has to compute its result


class Changed(Exception):
    """The module is no longer what was recorded."""


def unchanged() -> None:
    """A check of a module that was looked at already."""


class Origin(NamedTuple):
    """A call as it is written."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Call(Protocol):
    """A recorded call."""

    @property
    def pending(self) -> bool:
        """Whether its last results may still be differentiated and no other call may be replayed."""

    def __call__(self, inputs: list[Tensor], origin: Origin, check: Callable[[], None] = unchanged) -> Any:
        """The results for other inputs of the same shapes; ``NOT_REPLAYED`` if it does not stand for this call.

        ``origin`` is what the module was called with, which contains the inputs. ``check`` raises :class:`Changed` if
        the module is not what was recorded; it is called before anything else can be seen of the call, and takes so
        long that a GPU should have work by then.
        """


class Form(NamedTuple):
    """How a module is recorded.

    Attributes:
        record: Record a call of a module, given its arguments and an empty dict that the recordings of a module share;
            raises ``RuntimeError`` if that fails.
        plain: The module's own forward.
        kinds: The kinds of devices that it can be recorded on.
        accepts: Whether a module can be recorded.
    """

    record: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], dict[Any, Any]], Call]
    plain: Callable[..., Any]
    kinds: Collection[str]
    accepts: Callable[[nn.Module], bool]


class _Local(thread_local):
    """Whether this thread is recording, so that calls inside run as they are written."""

    recording = False


_local = _Local()


def is_recording() -> bool:
    """Whether this thread is recording a call."""
    return _local.recording


@contextmanager
def recording() -> Iterator[None]:
    """Inside the block, modules of this thread run as they are written."""
    before, _local.recording = _local.recording, True
    try:
        yield
    finally:
        _local.recording = before


class _Recent(NamedTuple):
    """What the call before was like, and its recording."""

    key: Hashable
    modes: Hashable
    device: torch.device
    state: list[Any]
    call: Call


class Recorder:
    """The recordings of one module; see :func:`record`. Its length is their number.

    Attributes:
        form: How they are made.
        keep: The number of recordings that are kept.
        reason: Why the last attempt to record failed; None if none did.
    """

    def __init__(self, form: Form, keep: int = 4) -> None:
        self.form, self.keep = form, keep
        self.reason: str | None = None
        self._owner: Callable[[], nn.Module | None] | None = None
        self._calls: OrderedDict[Hashable, Call] = OrderedDict()
        self._seen: Counter[Hashable] = Counter()
        self._failures: Counter[Hashable] = Counter()
        self._changes, self._credit = 0, _CREDIT
        self._state: ModuleState | None = None
        self._last: Call | None = None  # replayed last
        self._recent: _Recent | None = None
        self._shared: dict[Any, Any] = {}
        # ``_recording`` is held while the module has other tensors for its parameters, and to change ``_running``, the
        # number of threads inside its own forward.
        self._lock, self._recording, self._running = Lock(), Lock(), 0

    def __len__(self) -> int:
        return len(self._calls)

    def __deepcopy__(self, memo: Any) -> Recorder:
        return Recorder(self.form, self.keep)

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorder, (self.form, self.keep)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's result: replayed, or its own forward."""
        if self._changes >= _CHANGES or self._failures.total() >= _MOST_FAILURES:
            return self.form.plain(module, *args, **kwargs)
        if self._lock.acquire(blocking=False):
            try:
                found = self._replay(Origin(module, args, kwargs))
            finally:
                self._lock.release()
            if found is not NOT_REPLAYED:
                return found
        return self._plain(module, args, kwargs)

    def _plain(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The module's own forward, after a recording that another thread makes."""
        if is_recording():
            return self.form.plain(module, *args, **kwargs)
        with self._recording:
            self._running += 1
        try:
            return self.form.plain(module, *args, **kwargs)
        finally:
            with self._recording:
                self._running -= 1

    def _replay(self, origin: Origin) -> Any:
        """The result of a recording of such a call, made now if it is time."""
        if self._last is not None and self._last.pending:
            return NOT_REPLAYED  # recordings share their memory, and backward still reads it
        if self._owner is None:
            self._owner = weakref.ref(origin.module)
        if self._owner() is not origin.module:  # a replica shares its attributes
            return NOT_REPLAYED
        inputs: list[Tensor] = []
        try:
            key = describe((origin.args, origin.kwargs), inputs)
        except Unknown:
            return NOT_REPLAYED
        recent = self._recent
        if recent is not None and self._is_like(recent, key):  # the usual case, which takes less time to find out
            try:
                found = recent.call(inputs, origin, partial(self._check, origin.module, recent.state))
            except Changed:
                self._recent = None
            else:
                self._credit += 1
                return found
        call = self._find(key, origin, inputs)
        return NOT_REPLAYED if call is None else call(inputs, origin)

    def _find(self, key: Hashable, origin: Origin, inputs: list[Tensor]) -> Call | None:
        """The recording of calls of a kind."""
        if not self._often(key):
            return None
        devices = {x.device for x in inputs}
        state = self._look(device := devices.pop(), origin.module) if len(devices) == 1 else None
        if state is None or self._state is None:
            return None
        now = modes(device.type)
        whole = key, now, self._state.training(state)
        call = self._calls.get(whole)
        if call is None:
            call = self._record(whole, *origin)
        if call is not None:
            self._credit += 1
            self._calls.move_to_end(whole)
            self._last = call
            self._recent = _Recent(key, now, device, state, call)
        return call

    def _is_like(self, recent: _Recent, key: Hashable) -> bool:
        """Whether the recording of the call before serves this one too, if the module has not changed.

        That takes long to find out, so that it is left to the recording; what launches read must be where it was.
        """
        if key != recent.key or self._state is None or _seen_by_others(recent.device):
            return False
        return modes(recent.device.type) == recent.modes and self._state.in_place()

    def _check(self, module: nn.Module, before: list[Any]) -> None:
        if self._state is None or not self._state.is_as(self._state.look(module), before):
            raise Changed

    def _often(self, key: Hashable) -> bool:
        """Whether calls with such arguments were seen often enough."""
        count = self._seen[key]
        if count > _WARM_UP:
            return True
        if len(self._seen) > _COUNTED:
            self._seen.clear()
        self._seen[key] = count + 1
        return count == _WARM_UP

    def _look(self, device: torch.device, module: nn.Module) -> list[Any] | None:
        """What a recording of the module depends on; None if its calls cannot be replayed now."""
        if device.type not in self.form.kinds or _seen_by_others(device):
            return None
        if self._state is None:
            if not self.form.accepts(module):
                return None
            self._state = ModuleState(module)
        found = self._state.look(module)
        if found is None:
            return None
        if not self._state.holds(found):  # begin again
            self._calls.clear()
            self._seen.clear()
            self._changes += 1
            self._state = self._recent = None
            return None
        return found if self._state.devices <= {device} else None

    def _record(self, key: Hashable, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        with self._recording:
            if self._running or self._failures[key] >= _FAILURES:
                return None
            if len(self._calls) >= self.keep:
                if self._credit < _PRICE:  # kinds of calls that take turns would be recorded over and over
                    return None
                self._credit -= _PRICE
                self._calls.popitem(last=False)
            self._recent = None
            try:
                with recording():
                    self._calls[key] = self.form.record(module, args, kwargs, self._shared)
            except torch.OutOfMemoryError as error:  # the next call may have enough
                self.reason = str(error).splitlines()[0]
            except (
                Exception
            ) as error:  # whatever it is: the module's own forward raises it again, if it is the caller's
                self.reason = (str(error) or type(error).__name__).splitlines()[0]
                self._failures[key] += 1
        return self._calls.get(key)


def _seen_by_others(device: torch.device) -> bool:
    """Whether something wants to see every module's call, every operation or, on this device, every launch."""
    if torch.is_anomaly_enabled() or globally_hooked() or torch._C._len_torch_dispatch_stack():
        return True
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
