"""Record work as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


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
