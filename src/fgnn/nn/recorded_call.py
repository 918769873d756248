"""One call of a module, recorded as CUDA graphs of its forward and backward pass and replayed on new numbers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from fgnn.nn.cuda_graph import undone_if_it_fails
from fgnn.nn.recorder import unchanged

Work = Callable[[], None]
_ALIGNED = 8  # entries of 16 bytes or more, which kernels load at once
_LARGE = 1 << 18  # entries of a gradient that is not worth a second copy


class Engine(Protocol):
    """How work is recorded."""

    def warm_up(self, work: Work) -> None:
        """Run the work once, where it will be recorded."""

    def capture(self, work: Work) -> Work:
        """Record the work; returns what replays it."""


class CudaEngine:
    """CUDA graphs in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            work()
        current.wait_stream(self.stream)

    def capture(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        # "thread_local": threads of a data loader may use the device meanwhile.
        how: Any = {"pool": self.pool, "stream": self.stream, "capture_error_mode": "thread_local"}
        with undone_if_it_fails(), torch.cuda.graph(graph, **how):
            work()
        return graph.replay


# What records, by kind of device.
ENGINES: dict[str, Callable[[torch.device], Engine]] = {"cuda": CudaEngine}


class RecordedCall:
    """The forward pass of a module and, if gradients are enabled, its backward pass, for inputs of fixed shapes.

    The recording reads its own copies of the inputs, and the memory of the parameters and buffers. A replay overwrites
    what backward reads, so there is one forward pass at a time: see ``pending``.

    Args:
        module: What is recorded.
        call: Calls the module with the parameters it is given, on ``held``.
        held: The memory of the inputs that change from call to call.
        engine: Records.
        copies: Give results and gradients memory of their own; otherwise the next call overwrites them.
    """

    def __init__(
        self,
        module: nn.Module,
        call: Callable[[dict[str, Tensor]], Any],
        held: list[Tensor],
        engine: Engine,
        copies: bool = True,
    ) -> None:
        self._copies, self._turn = copies, 0
        self._open: Callable[[], _Turn | None] = _never
        self._grad = torch.is_grad_enabled()
        parameters = dict(module.named_parameters())
        # Record aliases of the parameters: one used before is tied to the stream of that use, on which a recording
        # must not depend.
        self._aliases = {
            name: p.detach().requires_grad_(p.requires_grad and self._grad) for name, p in parameters.items()
        }
        self._call, self._held = call, held
        self._live: list[Any] = []  # results with their autograd graph, between forward and backward
        self._results: list[Any] = []
        self._ups: list[Tensor] = []  # gradients at the results
        given = [(k, x) for k, x in enumerate(self._held) if x.requires_grad]
        self._wanted = [x for _, x in given] + [x for x in self._aliases.values() if x.requires_grad]
        with restored(module, self._held):
            self._record(engine)
        self._at = [k for k, x in given if any(x is y for y in self._wanted)]
        reads = {id(x) for x in self._wanted}
        self._parameters = [p for name, p in parameters.items() if id(self._aliases[name]) in reads]

    def _record(self, engine: Engine) -> None:
        """Warm up and capture; tensors without a gradient in the warm-up are not inputs of the backward pass."""
        sums = _Sums()

        def backward() -> None:
            results = [x for x in self._live if isinstance(x, Tensor) and x.requires_grad]
            grads = torch.autograd.grad(results, self._wanted, self._ups, allow_unused=True)
            self._live = []
            sums.fill(self._wanted, grads)

        def first() -> None:
            self._forward()
            self._ups = [torch.zeros_like(x) for x in self._live if isinstance(x, Tensor) and x.requires_grad]
            if self._ups:
                backward()

        engine.warm_up(first)
        self._wanted, self._live = sums.reached, []
        self._replay = engine.capture(self._forward)
        self._replay_backward = engine.capture(backward) if self._wanted else _nothing
        self._live = []
        self._sums = sums

    def _forward(self) -> None:
        with torch.set_grad_enabled(self._grad):
            result = self._call(self._aliases)
        self._live, self._nesting = tree_flatten(result)
        self._results = [x.detach() if isinstance(x, Tensor) else x for x in self._live]
        self._carries = [isinstance(x, Tensor) and x.requires_grad for x in self._live]

    @property
    def pending(self) -> bool:
        """Whether the last results may still be differentiated, so that a replay would spoil the backward pass."""
        last = self._open()
        return last is not None and not last.done

    def __call__(self, inputs: Sequence[Tensor], origin: Any = None, check: Callable[[], None] = unchanged) -> Any:
        """The results for other inputs of the same shapes."""
        check()
        differs = [(to, x) for to, x in zip(self._held, inputs, strict=True) if to.data_ptr() != x.data_ptr()]
        if differs:
            with torch.no_grad():
                torch._foreach_copy_([to for to, _ in differs], [x for _, x in differs])
        self._turn += 1
        if self._wanted:
            given = [inputs[k] for k in self._at]
            leaves = list(_Replay.apply(self, *given, *self._parameters))  # type: ignore[no-untyped-call]
        else:
            self._replay()
            leaves = self.results()
        constants = iter(x for x in self._results if not isinstance(x, Tensor))
        tensors = iter(leaves)
        return tree_unflatten(
            [next(tensors if isinstance(x, Tensor) else constants) for x in self._results], self._nesting
        )

    def results(self) -> list[Tensor]:
        """The tensors among the results of the last replay."""
        return [x.clone() if self._copies else x.detach() for x in self._results if isinstance(x, Tensor)]

    def begin(self) -> _Turn:
        """Replay the forward pass; returns what its backward pass needs to know."""
        self._replay()
        turn = _Turn(self._turn)
        self._open = weakref.ref(turn)
        return turn

    @property
    def constant(self) -> list[bool]:
        """Of each tensor among the results, whether it has no gradient."""
        pairs = zip(self._results, self._carries, strict=True)
        return [not carries for x, carries in pairs if isinstance(x, Tensor)]

    def gradients(self, turn: _Turn, grads: Sequence[Tensor | None]) -> list[Tensor]:
        """Replay the backward pass; gradients at the inputs that want one, then at the parameters."""
        if turn.done or turn.number != self._turn:
            raise RuntimeError(
                "Expected one backward pass for each call of a recorded module, before its next call (got another); "
                "for retain_graph=True switch the recording off: fgnn.nn.record(module, False)"
            )
        turn.done = True
        ups = [grad for grad, constant in zip(grads, self.constant, strict=True) if not constant]
        given = [(to, grad) for to, grad in zip(self._ups, ups, strict=True) if grad is not None]
        for to, grad in zip(self._ups, ups, strict=True):
            if grad is None:
                to.zero_()
        torch._foreach_copy_([to for to, _ in given], [grad for _, grad in given])
        self._replay_backward()
        return self._sums.read(self._copies)


class _Turn:
    """One forward pass, and whether its backward pass has run."""

    def __init__(self, number: int) -> None:
        self.number, self.done = number, False


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: RecordedCall, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.turn = call, call.begin()
        ctx.set_materialize_grads(False)
        results = call.results()
        ctx.mark_non_differentiable(*(x for x, constant in zip(results, call.constant, strict=True) if constant))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.call.gradients(ctx.turn, grads)


class _Sums:
    """The gradients of a recording. Small ones lie in one piece of memory for each dtype, which one copy saves."""

    def __init__(self) -> None:
        self.reached: list[Tensor] = []  # the tensors with a gradient
        self._flat: dict[torch.dtype, tuple[Tensor, list[int]]] = {}  # memory, and whose gradients it holds, in order
        self._large: dict[int, Tensor] = {}

    def fill(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Store the gradients at these tensors; the first call says where."""
        some = [(x, grad) for x, grad in zip(tensors, grads, strict=True) if grad is not None]
        if not self.reached:
            self._lay_out([x for x, _ in some])
        for flat, at in self._flat.values():
            torch._foreach_copy_(self._views(flat, at), [some[k][1] for k in at])
        self._large = {k: some[k][1] for k in self._large}

    def _lay_out(self, tensors: list[Tensor]) -> None:
        self.reached = tensors
        self._large = {k: x for k, x in enumerate(tensors) if x.numel() > _LARGE}
        for dtype in dict.fromkeys(x.dtype for x in tensors):
            at = [k for k, x in enumerate(tensors) if x.dtype == dtype and k not in self._large]
            at.sort(key=lambda k: tensors[k].numel() % _ALIGNED > 0)  # odd sizes last, or what follows is not aligned
            if at:
                size = sum(tensors[k].numel() for k in at)
                self._flat[dtype] = tensors[0].new_empty(size, dtype=dtype), at

    def _views(self, flat: Tensor, at: list[int]) -> list[Tensor]:
        views: list[Tensor] = torch._C._nn.unflatten_dense_tensors(flat, [self.reached[k] for k in at])
        return views

    def read(self, copy: bool) -> list[Tensor]:
        """The gradients of the last replay."""
        found = {k: x.clone() if copy else x.detach() for k, x in self._large.items()}
        for flat, at in self._flat.values():
            found |= zip(at, self._views(flat.clone() if copy else flat, at), strict=True)
        return [found[k] for k in range(len(self.reached))]


@contextmanager
def restored(module: nn.Module, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Undo what the work inside does to buffers (running statistics) and to random number generators."""
    buffers = list(module.buffers())
    before = [x.clone() for x in buffers]
    devices = sorted({x.device.index for x in inputs if x.is_cuda})
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for x, old in zip(buffers, before, strict=True):
            x.data.copy_(old)  # unseen by autograd: earlier calls may still be differentiated


def _nothing() -> None:
    pass


def _never() -> None:
    """A reference to no turn."""
