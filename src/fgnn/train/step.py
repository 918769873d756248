"""A training step: forward, backward and what follows, on a GPU recorded once and replayed.

A step of a network on many small graphs is thousands of short kernels, and launching them takes far longer than running
them. A CUDA graph launches all of them at once; the numbers are those of the eager step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fgnn.nn.recording import recording
from fgnn.tasks.task import Loss
from fgnn.tasks.tensor_tree import clone_tensors, copy_tensors, signature

_WARM_UP = 3  # eager steps before the recording: kernels are compiled and tuned, caches filled


class Step:
    """Computes a batch's loss and its gradients, and does what follows from them.

    On a CUDA device the first few calls run eagerly; then a call is recorded and all later ones of the same shapes are
    replays. Where recording fails (a network that reads results back on the host) steps stay eager and ``say`` is
    told. Kernels are recorded with the Python numbers they were given: a batch norm's momentum that is changed later
    stays what it was. What changes with the step belongs in a tensor that is filled anew, as the optimiser's rate is.

    Args:
        network: Whose gradients.
        loss: Of a batch, under the right autocast.
        after: Uses the gradients, such as an optimiser's step, without a word to the host; None leaves them in the
            parameters.
        capture: Whether to record at all.
        say: Told why steps stay eager.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[[Any], Loss],
        *,
        after: Callable[[], None] | None = None,
        capture: bool,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.network, self._loss, self._say = network, loss, say
        self._capture, self._after = capture, after
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._signature: tuple[Any, ...] = ()
        self._held: Any = None
        self._result: Loss | None = None

    @property
    def captured(self) -> bool:
        """Whether steps are replays by now."""
        return self._graph is not None

    def __call__(self, batch: Any) -> Loss:
        if self._graph is None and self._capture and self._calls >= _WARM_UP:
            self._record(batch)
        self._calls += 1
        if self._graph is not None and signature(batch) == self._signature:
            copy_tensors(self._held, batch)
            self._graph.replay()
            assert self._result is not None
            return self._result
        result = self._eager(batch)
        if self._after is not None:
            self._after()
        return result

    def _eager(self, batch: Any) -> Loss:
        for p in self.network.parameters():
            # after a recording, gradients live in the graph's memory and must stay there
            if p.grad is not None and self._graph is None:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()
        result = self._loss(batch)
        torch.autograd.backward(result.loss)
        # A result that kept its autograd graph would keep the graph's stream too, and a recording on another one fails
        return Loss(result.loss.detach(), result.agreement.detach())

    def _record(self, batch: Any) -> None:
        self._held, self._signature = clone_tensors(batch), signature(batch)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                self._eager(self._held)  # its gradients are not used
            torch.cuda.current_stream().wait_stream(side)
            for p in self.network.parameters():
                p.grad = None
            with recording() as graph:
                result = self._loss(self._held)
                torch.autograd.backward(result.loss)
                if self._after is not None:
                    self._after()
        except RuntimeError as error:
            self._capture = False
            for p in self.network.parameters():
                p.grad = None
            self._say(f"steps stay eager: recording failed ({str(error).splitlines()[0][:100]})")
        else:
            self._graph = graph
            self._result = Loss(result.loss.detach(), result.agreement.detach())
