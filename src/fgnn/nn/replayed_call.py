"""One call of a module as two programs, its launches forward and backward, in new memory at every call.

A CUDA graph (:class:`RecordedCall`) is faster still, but keeps the memory of a step to itself and has one forward pass
at a time. Here nothing is kept: a call behaves as the module does, without the Python between its launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import attrgetter
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from fgnn.nn.backends import differentiable
from fgnn.nn.backends.choice import no_autocast
from fgnn.nn.backends.triton.constants import fold_constants
from fgnn.nn.backends.triton.effects import check_before_effects
from fgnn.nn.backends.triton.joint_steps import join_steps
from fgnn.nn.backends.triton.program import Program
from fgnn.nn.backends.triton.tape import ALIGNED, Operation, Place, Tape
from fgnn.nn.call_key import describe, replaced
from fgnn.nn.recorded_call import restored
from fgnn.nn.recorder import NOT_REPLAYED, Origin, recording, unchanged

_SEEDED = torch.Tag.nondeterministic_seeded


class _Saved(NamedTuple):
    """What a backward pass reads besides the inputs, and how often it was written to before."""

    kept: list[Tensor]
    versions: list[int]


class ReplayedCall:
    """Calls of a module with inputs of fixed shapes; ``RuntimeError`` if their launches cannot be repeated.

    Backward is recorded with a gradient at every result. Once some result turns out to be unused, its gradient is zero
    in that pass, and the module itself serves later calls.

    Args:
        origin: An example; no reference to it is kept.
    """

    pending = False  # calls share no memory

    def __init__(self, origin: Origin) -> None:
        inputs: list[Tensor] = []
        describe((origin.args, origin.kwargs), inputs)
        kind, module = inputs[0].device.type, origin.module
        self._grad, self._all_used, self._random = torch.is_grad_enabled(), True, False
        self._unreached: list[int] = []
        self._autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        named = dict(module.named_parameters())
        own = {x.untyped_storage().data_ptr() for x in (*named.values(), *module.buffers()) if x.numel()}
        if any(x.untyped_storage().data_ptr() in own for x in inputs):
            raise RuntimeError("Expected inputs that are no parameters of the module (got one that is)")
        self._aliases = {name: p.detach().requires_grad_(p.requires_grad and self._grad) for name, p in named.items()}
        self._names = [name for name, p in named.items() if p.requires_grad and self._grad]
        self._wanted = [x.requires_grad and self._grad for x in inputs]
        placed: list[Tensor] = []
        for x in inputs:  # one that is given twice may be two others the next time
            again = any(x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() for y in placed if y.numel())
            placed.append(x.clone(memory_format=torch.contiguous_format) if again else _placed(x))
        with torch.autocast(kind, enabled=False), restored(module, placed):
            self._forward, self._backward = self._record(origin, placed)
            self._parameters = [named[name] for name in self._names]
            self._training = [m.training for m in module.modules()]
            self._fits = self._forward.fits_here()  # and later: the current device is among the modes of a call
            self._constant = [k for k, carries in enumerate(self._carries) if not carries]
            self._shared = [k for k in range(len(self._carries)) if k not in self._forward.alone]
            self._single = self._nesting.is_leaf() and self._results[0] is _TENSOR
            try:
                with torch.no_grad():
                    self._forward(placed)
            except (TypeError, AttributeError) as error:  # this version of Triton launches kernels differently
                raise RuntimeError(str(error)) from error

    def __call__(self, inputs: Sequence[Tensor], origin: Origin, check: Callable[[], None] = unchanged) -> Any:
        """The results for other inputs of the same shapes; ``NOT_REPLAYED`` if the module has to compute them."""
        if not (self._all_used and self._fits):
            check()
            return NOT_REPLAYED
        placed = [x if x.is_contiguous() and not x.data_ptr() % ALIGNED else _placed(x) for x in inputs]
        found: list[Any]
        if self._backward is not None:
            for k in self._unreached:  # autograd would call their hooks, with no gradient
                placed[k] = placed[k].detach()
            found = [*_apply(self, _without_tensors(origin), check, *placed, *self._parameters)]
        elif self._grad:
            with torch.no_grad():
                found = self.run(placed, check)[0]
        else:
            found = self.run(placed, check)[0]
        if self._single:
            return found[0]
        if len(found) < len(self._results):
            tensors = iter(found)
            found = [next(tensors) if x is _TENSOR else x for x in self._results]
        return tree_unflatten(found, self._nesting)

    def run(self, inputs: Sequence[Tensor], check: Callable[[], None] = unchanged) -> tuple[list[Tensor], _Saved]:
        """The results, and what their backward pass reads."""
        found, count = self._replay(self._forward, inputs, check), len(self._carries)
        kept = found[count:]
        del found[count:]
        # Results are the caller's, other objects than what is kept: either may be all that is alive of the two.
        for k in self._shared:
            found[k] = found[k].detach()
        return found, _Saved(kept, self._versions(kept))

    def gradients(self, inputs: Sequence[Tensor], saved: _Saved, ups: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients at the inputs, then at the parameters."""
        assert self._backward is not None
        self._check(saved)
        placed = []
        for up, zeros in zip(ups, self._zeros, strict=True):
            if zeros is not None:
                self._all_used &= up is not None
                if up is None:
                    placed.append(zeros.contiguous())
                else:
                    placed.append(up if up.is_contiguous() and not up.data_ptr() % ALIGNED else _placed(up))
        return self._replay(self._backward, [*inputs, *saved.kept, *placed])

    def _replay(self, program: Program, operands: Sequence[Tensor], check: Callable[[], None] = unchanged) -> list[Any]:
        if torch.is_autocast_enabled(self._autocast[0]):  # what was recorded contains its conversions
            with no_autocast(program.where):
                found = program(operands, check)
        else:
            found = program(operands, check)
        assert found is not None
        return found

    def gradients_again(
        self, origin: Origin, inputs: Sequence[Tensor], saved: _Saved, ups: Sequence[Tensor | None],
        wants: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        """The same with a graph of their own: gradients of the module as it is written."""
        self._check(saved)
        if self._random:
            raise RuntimeError(
                "Expected a module without dropout where gradients are differentiated again (got random numbers); "
                "for those switch replays off: fgnn.nn.record(module, False)"
            )
        count = len(inputs)

        def plain(flat: Sequence[Tensor]) -> list[Tensor]:
            found = self._run(origin, dict(zip(self._names, flat[count:], strict=True)), flat[:count])
            return [x for x in tree_flatten(found)[0] if isinstance(x, Tensor)]

        with _one_at_a_time, recording(), restored(origin.module, ()), _in_modes(origin.module, self._training):
            return differentiable.gradients(plain, [*inputs, *self._parameters], wants, ups)

    def _run(self, origin: Origin, parameters: dict[str, Tensor], inputs: Sequence[Tensor]) -> Any:
        """The module with other parameters and inputs."""
        args, kwargs = replaced((origin.args, origin.kwargs), iter(inputs))
        kind, dtype, enabled = self._autocast
        # Autocast's copies of weights would be those of this call for ever.
        with torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False):
            return torch.func.functional_call(origin.module, parameters, args, kwargs)

    def _check(self, saved: _Saved) -> None:
        if saved.versions != self._versions(saved.kept):
            raise RuntimeError(
                "Expected parameters and results that are the same as in the forward pass (got some that changed)"
            )

    def _versions(self, kept: Sequence[Tensor]) -> list[int]:
        if self._backward is None:
            return []
        return [*map(_version, self._read), *[x._version for x in kept if not x.is_inference()]]

    def _record(self, origin: Origin, inputs: Sequence[Tensor]) -> tuple[Program, Program | None]:
        """The programs of the forward and the backward pass."""
        with torch.set_grad_enabled(self._grad), torch.autograd.set_multithreading_enabled(False):
            leaves = [x.detach().requires_grad_(wanted) for x, wanted in zip(inputs, self._wanted, strict=True)]
            with Tape(leaves, constant=self._aliases.values()) as forward:
                flat, self._nesting = tree_flatten(self._run(origin, self._aliases, leaves))
            self._random = any(isinstance(x, Operation) and _SEEDED in x.call.tags for x in forward.steps)
            results = [x for x in flat if isinstance(x, Tensor)]
            fold_constants(forward, results)
            join_steps(forward, inputs[0].device, {p.data_ptr() for p in self._aliases.values()})
            check_before_effects(forward, origin.module.buffers())
            self._results = [_TENSOR if isinstance(x, Tensor) else x for x in flat]
            self._carries = [x.requires_grad for x in results]
            self._zeros = [x.new_zeros(()).expand(x.shape) if x.requires_grad else None for x in results]
            if not any(self._carries):
                return _program(forward, results), None
            ups = [None if zeros is None else zeros.contiguous() for zeros in self._zeros]
            with Tape(ups, forward) as backward:
                grads = torch.autograd.grad(
                    [x for x in results if x.requires_grad],
                    [x for x in (*leaves, *self._aliases.values()) if x.requires_grad],
                    [up for up in ups if up is not None], allow_unused=True,
                )  # fmt: skip
            join_steps(backward, inputs[0].device)
            rest = iter(grads)
            given = [next(rest) if wanted else None for wanted in self._wanted]
            own = dict(zip(self._names, rest, strict=True))
            self._names = [name for name, grad in own.items() if grad is not None]
            self._unreached = [k for k, wanted in enumerate(self._wanted) if wanted and given[k] is None]
            at = [*given, *[own[name] for name in self._names]]
            first, second = _programs(forward, backward, results, at, self._carries)
            # Running statistics belong to the forward pass alone, and the next one may come before this backward pass.
            used = backward.used
            read = [x for k, x in enumerate(second.fixed) if x is not None and k in used]
            self._read = [x for x in read if not x.is_inference()]
            return first, second


_version = attrgetter("_version")
_TENSOR = object()  # stands for a tensor among the results


_HOLE = torch.empty(0)  # where a tensor was
_one_at_a_time = RLock()  # modules that have other tensors for their parameters


def _without_tensors(origin: Origin) -> Origin:
    """A call without its tensors: the caller may change its dicts, or keep results in them."""
    args, kwargs = replaced((origin.args, origin.kwargs), repeat(_HOLE))
    return Origin(origin.module, args, kwargs)


@contextmanager
def _in_modes(module: nn.Module, training: Sequence[bool]) -> Iterator[None]:
    """The modes in which a call was recorded."""
    modules = list(module.modules())
    before = [m.training for m in modules]
    for m, mode in zip(modules, training, strict=True):
        m.training = mode
    try:
        yield
    finally:
        for m, mode in zip(modules, before, strict=True):
            m.training = mode


def _placed(x: Tensor) -> Tensor:
    """The same numbers, contiguous and at an address that kernels can read from."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % ALIGNED else x


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
    return first, _program(backward, grads, None, parts, slots, True)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: ReplayedCall, origin: Origin, check: Callable[[], None], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        inputs = tensors[: len(call._wanted)]
        results, ctx.saved = call.run(inputs, check)
        ctx.call, ctx.origin = call, origin
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        if call._constant:
            ctx.mark_non_differentiable(*[results[k] for k in call._constant])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *ups: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors  # torch refuses a second backward pass without retain_graph
        saved, origin = ctx.saved, ctx.origin
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.saved = ctx.origin = None
        if torch.is_grad_enabled():
            return None, None, None, *ctx.call.gradients_again(origin, inputs, saved, ups, ctx.needs_input_grad[3:])
        return None, None, None, *ctx.call.gradients(inputs, saved, ups)


# Function.apply without its search for tensors that a transform of torch.func left behind: there is no such transform.
_apply: Any = super(torch.autograd.Function, _Replay).apply
