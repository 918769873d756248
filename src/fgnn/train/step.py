"""A training step: forward, backward and update, on a GPU captured once in a CUDA graph and replayed.

A step on many small graphs is thousands of short kernels, and launching them takes far longer than running them. A CUDA
graph launches all of them at once; the numbers are those of the eager step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fgnn.nn.cuda_graph import recording
from fgnn.tasks import Loss
from fgnn.tasks.tensor_tree import clone_tensors, copy_tensors, signature

_WARM_UP = 3  # eager steps before the capture, which compile and tune kernels and fill caches


class Step:
    """Compute the loss of a batch and its gradients, and apply them.

    On a CUDA device the first few calls run eagerly; then one call is captured, and later batches of the same shapes
    replay it. If the capture fails (a network that reads results back on the host) steps stay eager and ``log`` gets
    the reason. A captured kernel keeps its Python numbers: a batch norm's momentum that changes later has no effect.
    Whatever changes from step to step must be in a tensor that is refilled, as the learning rate is.

    Args:
        network: The network whose gradients are computed.
        loss: The loss of a batch, under the right autocast.
        after: Applies the gradients without host synchronisation; None leaves them in the parameters.
        capture: Use a CUDA graph.
        log: Called with the reason if steps stay eager.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[[Any], Loss],
        *,
        after: Callable[[], None] | None = None,
        capture: bool,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.network, self._loss, self._log = network, loss, log
        self._capture, self._after = capture, after or (lambda: None)
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._signature: tuple[Any, ...] = ()
        self._inputs: Any = None  # the batch in the memory that the graph reads
        self._result: Loss | None = None

    @property
    def captured(self) -> bool:
        """True once steps are replayed."""
        return self._graph is not None

    def __call__(self, batch: Any) -> Loss:
        if self._graph is None and self._capture and self._calls >= _WARM_UP:
            self._record(batch)
        self._calls += 1
        if self._graph is not None and signature(batch) == self._signature:
            copy_tensors(self._inputs, batch)
            self._graph.replay()
            assert self._result is not None
            return self._result
        for p in self.network.parameters():
            # after a capture, gradients live in the graph's memory and must stay there
            if p.grad is not None and self._graph is None:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()
        result = self._backward(batch)
        self._after()
        return result

    def _backward(self, batch: Any) -> Loss:
        result = self._loss(batch)
        torch.autograd.backward(result.loss)
        # detached: the autograd graph would keep its stream, and a capture on another stream fails
        return Loss(result.loss.detach(), result.correct.detach())

    def _record(self, batch: Any) -> None:
        self._inputs, self._signature = clone_tensors(batch), signature(batch)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            self._drop_gradients()
            with torch.cuda.stream(side):
                self._backward(self._inputs)  # warm-up; its gradients are not used
            torch.cuda.current_stream().wait_stream(side)
            self._drop_gradients()
            with recording() as graph:
                result = self._backward(self._inputs)
                self._after()
        except RuntimeError as error:
            self._capture = False
            self._drop_gradients()
            self._log(f"steps stay eager: recording failed ({str(error).splitlines()[0][:100]})")
        else:
            self._graph, self._result = graph, result

    def _drop_gradients(self) -> None:
        for p in self.network.parameters():
            p.grad = None
