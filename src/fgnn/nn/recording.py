"""Recording CUDA graphs so that a recording that fails leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def recording(stream: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """Record what runs inside as a CUDA graph; a ``RuntimeError`` where it cannot be.

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
    """Make the device usable again after a recording that failed inside, and pass the error on.

    The generator of random numbers is told when a recording begins, but not when one fails: it refuses every draw from
    then on ("Offset increment outside graph capture"), unless its state is replaced by a copy, which knows of none.
    """
    try:
        yield
    except RuntimeError:
        torch.cuda.synchronize()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())
        raise
