"""Work recorded as CUDA graphs, so that a call takes the GPU's time instead of Python's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten


def graphed(module: nn.Module, *example: Any) -> Graphed:
    """Record a module's forward and backward as CUDA graphs, for calls like this example.

    A layer on a small graph is a few dozen kernels of microseconds each, and launching them one by one takes longer
    than running them; a CUDA graph launches all at once. Floating-point tensors among the arguments, also in dicts and
    tuples, may change from call to call. Their shapes and everything else (the graph, edge types, autocast) must match
    the example; a call that does not runs without the recording. So do all calls without a GPU, and calls of a module
    that cannot be recorded, for example because it synchronises with the host, as reading edge types from a tensor
    (instead of ``EdgeTypes``) does; see ``recorded``.

    The next call overwrites the results of a call and the gradients it leaves: read or copy them first, and set
    gradients to None (not to zero) between steps.

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
        self.recorded = False
        self.reason: str | None = None
        leaves, nesting = tree_flatten(example)
        if not any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves):
            return
        with torch.no_grad():
            module(*example)  # makes what is derived from the graph
        self._varies = [isinstance(x, Tensor) and x.is_floating_point() for x in leaves]
        copies = iter(x.detach().clone().requires_grad_(x.requires_grad) for x in self._inputs(leaves))
        self._held = [next(copies) if varies else x for x, varies in zip(leaves, self._varies, strict=True)]
        self._mode = _mode(module)
        self._parameters = dict(module.named_parameters())
        # Record aliases of the parameters: one used before is tied to the stream of that use, on which a recording
        # must not depend.
        aliases = {name: p.detach().requires_grad_(p.requires_grad) for name, p in self._parameters.items()}
        inner = tree_unflatten(self._held, nesting)
        _, autocast, dtype = self._mode

        def work(*_: Tensor) -> Any:  # the arguments are the tensors of `inner` and `aliases`
            with torch.autocast("cuda", dtype, enabled=autocast, cache_enabled=False):
                return torch.func.functional_call(module, aliases, inner)

        try:
            with warnings.catch_warnings(), undone_if_it_fails(), torch.autocast("cuda", enabled=False):
                # `work` sets autocast itself, without the cache that a recording forbids. Gradients are computed on a
                # stream other than that of the nodes that accumulate them, but nothing accumulates here.
                warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
                self._call = torch.cuda.make_graphed_callables(
                    work, (*self._inputs(self._held), *aliases.values()), allow_unused_input=True
                )
        except RuntimeError as error:
            self.reason = str(error).splitlines()[0]
            return
        self.recorded = True

    def __call__(self, *args: Any) -> Any:
        """The result of ``module(*args)``."""
        leaves, _ = tree_flatten(args)
        if not self.recorded or not self._fits(leaves):
            return self.module(*args)
        return self._call(*self._inputs(leaves), *self._parameters.values())

    def _inputs(self, leaves: list[Any]) -> list[Tensor]:
        return [x for x, varies in zip(leaves, self._varies, strict=True) if varies]

    def _fits(self, leaves: list[Any]) -> bool:
        if len(leaves) != len(self._held) or self._mode != _mode(self.module):
            return False
        return all(
            isinstance(x, Tensor) and _signature(x) == _signature(held) if varies else x is held
            for x, held, varies in zip(leaves, self._held, self._varies, strict=True)
        )


def _signature(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.dtype, x.device, x.requires_grad


def _mode(module: nn.Module) -> tuple[bool, bool, torch.dtype]:
    """What a recording depends on besides its arguments: training mode and autocast."""
    return module.training, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")


@contextmanager
def recording(stream: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """Record the work inside as a CUDA graph; raises ``RuntimeError`` if it cannot be recorded.

    Example:
        >>> with recording() as graph:  # doctest: +SKIP
        ...     result = work()
        >>> graph.replay()  # doctest: +SKIP
    """
    graph = torch.cuda.CUDAGraph()
    with undone_if_it_fails(), torch.cuda.graph(graph, stream=stream):
        yield graph


@contextmanager
def undone_if_it_fails() -> Iterator[None]:
    """Make the device usable again after a failed recording, and re-raise the error.

    The random number generator is not told that a recording failed, and refuses to draw from then on ("Offset increment
    outside graph capture"). Replacing its state by a copy resets it.
    """
    try:
        yield
    except RuntimeError:
        torch.cuda.synchronize()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())
        raise
