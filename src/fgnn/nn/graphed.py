"""A module recorded for one example, so that a call takes the GPU's time instead of Python's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fgnn.nn.call_key import Unknown, describe, modes
from fgnn.nn.record import record_call
from fgnn.nn.recorded_call import RecordedCall


def graphed(module: nn.Module, *example: Any) -> Graphed:
    """Record a module's forward and backward as CUDA graphs now, for calls like this example.

    See :func:`fgnn.nn.record`, which records by itself and is safer: here the next call overwrites the results of a
    call and the gradients it leaves. Read or copy them first, and set gradients to None (not to zero) between steps.
    A call that differs from the example in shapes, structure or autocast runs without the recording. So do all calls
    without a GPU, and calls of a module that cannot be recorded; see ``recorded``.

    Example:
        >>> fast = graphed(layer, graph, f, {"pair": g})  # doctest: +SKIP
        >>> new_f, new_g = fast(graph, other_f, {"pair": other_g})  # doctest: +SKIP
    """
    return Graphed(module, example)


class Graphed:
    """A recorded module; see :func:`graphed`.

    Attributes:
        module: The module itself, which shares its parameters with the recording.
        recorded: Whether there is a recording.
        reason: CUDA's message if recording failed; None otherwise.
    """

    def __init__(self, module: nn.Module, example: tuple[Any, ...]) -> None:
        self.module = module
        self.reason: str | None = None
        self._call: RecordedCall | None = None
        key, tensors = _described(module, example)
        if key is None or not any(x.is_cuda for x in tensors):
            return
        try:
            self._call, self._key = record_call(module, example, {}, {}, copies=False), key
        except RuntimeError as error:
            self.reason = str(error).splitlines()[0]

    @property
    def recorded(self) -> bool:
        """Whether there is a recording."""
        return self._call is not None

    def __call__(self, *args: Any) -> Any:
        """The result of ``module(*args)``."""
        if self._call is not None:
            key, tensors = _described(self.module, args)
            if key == self._key:
                return self._call(tensors)
        return self.module(*args)


def _described(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, list[Tensor]]:
    tensors: list[Tensor] = []
    try:
        arguments = describe(args, tensors)
        kind = tensors[0].device.type if tensors else "cpu"
        return (module.training, arguments, modes(kind)), tensors
    except Unknown:
        return None, tensors
