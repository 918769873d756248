"""One call of a module as two programs, its launches forward and backward, in new memory at every call.

A CUDA graph (:class:`RecordedCall`) is faster still, but keeps the memory of a step to itself and has one forward pass
at a time. Here nothing is kept: a call behaves as the module does, without the Python between its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from fgnn.nn.backends.triton.program import Program
from fgnn.nn.backends.triton.tape import Place, Tape, draws
from fgnn.nn.recorded_call import restored

Body = Callable[[dict[str, Tensor], list[Tensor]], Any]  # the module, with these parameters on these inputs
_ALIGNED = 16  # bytes, as the kernels expect
_CHANGES = 8  # of the results that are used; then backward runs for all, some with a gradient of zero


class _Passes(NamedTuple):
    """The programs of a forward and its backward pass, for some of the gradients at the results."""

    forward: Program
    backward: Program | None
    given: list[bool]  # which results have a gradient


class ReplayedCall:
    """Calls of a module with inputs of fixed shapes; ``RuntimeError`` if their launches cannot be repeated.

    Args:
        module: What is recorded.
        body: Calls it.
        inputs: An example.
    """

    pending = False  # calls share no memory

    def __init__(self, module: nn.Module, body: Body, inputs: Sequence[Tensor]) -> None:
        self._module, self._body, self._grad = module, body, torch.is_grad_enabled()
        named = dict(module.named_parameters())
        self._aliases = {name: p.detach().requires_grad_(p.requires_grad and self._grad) for name, p in named.items()}
        self._parameters = [p for p in named.values() if p.requires_grad and self._grad]
        self._all, self._changes = False, 0  # whether backward is recorded for all results, used or not
        self._wanted = [x.requires_grad and self._grad for x in inputs]
        placed = [_placed(x) for x in inputs]
        with restored(module, placed):
            self._passes, _ = self._record(placed, None)
            try:
                self._passes.forward(placed)
            except (TypeError, AttributeError) as error:  # this version of Triton launches kernels differently
                raise RuntimeError(str(error)) from error

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """The results for other inputs of the same shapes; None on another device."""
        passes = self._passes
        if not passes.forward.fits_here():
            return None
        placed = [_placed(x) for x in inputs]
        if passes.backward is None:
            found = iter(self.run(placed)[0])
        else:
            found = iter(_Replay.apply(self, *placed, *self._parameters))  # type: ignore[no-untyped-call]
        return tree_unflatten([next(found) if x is _TENSOR else x for x in self._results], self._nesting)

    def run(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], _Saved]:
        """The results, and what their backward pass reads."""
        passes, count = self._passes, len(self._carries)
        found = passes.forward(inputs)
        assert found is not None
        # another object than the result that is returned, or the two would keep each other alive
        kept = [x.detach() if any(x is y for y in found[:count]) else x for x in found[count:]]
        return found[:count], _Saved(passes, kept, self._versions())

    def gradients(self, inputs: Sequence[Tensor], saved: _Saved, ups: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients at the inputs, then at the parameters."""
        passes, kept, versions = saved
        if versions != self._versions():
            raise RuntimeError("Expected parameters that are the same as in the forward pass (got some that changed)")
        placed = [None if up is None or not c else _placed(up) for up, c in zip(ups, self._carries, strict=True)]
        if self._all:
            placed = self._filled(placed)
        found = None
        if [up is not None for up in placed] == passes.given and passes.backward is not None:
            found = passes.backward([*inputs, *kept, *[up for up in placed if up is not None]])
        if found is None:  # other results were used than the last time
            self._changes += 1
            self._all = self._changes >= _CHANGES
            with restored(self._module, inputs):
                self._passes, found = self._record(inputs, self._filled(placed) if self._all else placed)
        rest = iter(found)
        return [next(rest) if wanted else None for wanted in self._wanted] + list(rest)

    def _filled(self, ups: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients at all results, zero where there is none."""
        both = zip(ups, self._zeros, strict=True)
        return [zeros.contiguous() if up is None and zeros is not None else up for up, zeros in both]

    def _versions(self) -> list[int]:
        return [p._version for p in self._parameters]

    def _record(self, inputs: Sequence[Tensor], ups: Sequence[Tensor | None] | None) -> tuple[_Passes, list[Any]]:
        """Programs for such gradients at the results, by default all; also those at the inputs and parameters."""
        with torch.set_grad_enabled(self._grad), torch.autograd.set_multithreading_enabled(False):
            leaves = [x.detach().requires_grad_(wanted) for x, wanted in zip(inputs, self._wanted, strict=True)]
            with Tape(leaves) as forward:
                flat, self._nesting = tree_flatten(self._body(self._aliases, leaves))
            results = [x for x in flat if isinstance(x, Tensor)]
            self._results = [_TENSOR if isinstance(x, Tensor) else x for x in flat]
            self._carries = [x.requires_grad for x in results]
            if not any(self._carries):
                return _Passes(_program(forward, results), None, []), []
            if ups is None:
                ups = [torch.zeros_like(x) if x.requires_grad else None for x in results]
                self._zeros = [None if up is None else up.new_zeros(1).expand(up.shape) for up in ups]
            with Tape(ups, forward) as backward:
                grads = torch.autograd.grad(
                    [x for x, up in zip(results, ups, strict=True) if up is not None],
                    [x for x in (*leaves, *self._aliases.values()) if x.requires_grad],
                    [up for up in ups if up is not None], allow_unused=True,
                )  # fmt: skip
            found = list(grads)
            given = [up is not None for up in ups]
            self._all |= any(draws(step) for step in forward.steps)  # what was drawn cannot be drawn again
            return _Passes(*_programs(forward, backward, results, found, given), given), found


class _Saved(NamedTuple):
    """What a backward pass reads besides the inputs."""

    passes: _Passes
    kept: list[Tensor]
    versions: list[int]


_TENSOR = object()  # stands for a tensor among the results


def _placed(x: Tensor) -> Tensor:
    """The same numbers, contiguous and at an address that kernels can read from."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % _ALIGNED else x


def _program(tape: Tape, results: Sequence[Tensor | Place | None], *options: Any) -> Program:
    if tape.refused:
        raise RuntimeError(f"Expected a pass that can be repeated (got {tape.refused})")
    if any(isinstance(x, Tensor) and not x.numel() for x in results):
        raise RuntimeError("Expected results with entries (got an empty one)")
    return Program(tape, results, *options)


def _programs(
    forward: Tape, backward: Tape, results: Sequence[Tensor], grads: Sequence[Tensor | None], given: Sequence[bool]
) -> tuple[Program, Program]:
    """Both passes; what the second reads of the first is kept in one tensor, as far as that can be."""
    kept = sorted(k for k in backward.read if forward.operands <= k < len(forward.buffers))
    first = _program(forward, [*results, *[forward.whole(k) for k in kept]], len(results))
    slots, parts = list(range(forward.operands)), dict[int, tuple[int, int]]()
    places = first.together
    if places is None:
        slots += kept
    else:
        one = next(k for k, place in zip(kept, places, strict=True) if not place.buffer)
        parts = {k: (one, place.offset) for k, place in zip(kept, places, strict=True) if not place.buffer}
        slots += [one, *[k for k, place in zip(kept, places, strict=True) if place.buffer]]
    slots += [len(forward.buffers) + k for k, there in enumerate(given) if there]
    return first, _program(backward, grads, None, parts, slots)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: ReplayedCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = tensors[: len(call._wanted)]
        results, ctx.saved = call.run(inputs)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*(x for x, carries in zip(results, call._carries, strict=True) if not carries))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *ups: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, inputs = ctx.saved, ctx.saved_tensors  # torch refuses a second backward pass without retain_graph
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.saved = None
        return None, *ctx.call.gradients(inputs, saved, ups)
