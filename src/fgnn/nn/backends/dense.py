r"""Linear layers on several kinds of nodes at once, :math:`y_k = \sigma(x_k \Theta_k^\top + \beta_k) + r_k`, as one
differentiable operation: a function of autograd, and an operator for ``torch.compile``.

Generated code for every bias, ReLU and residual of a network takes minutes to compile and runs no faster than the
products it surrounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgnn.nn.backends import linear_passes
from fgnn.nn.backends.choice import no_autocast
from fgnn.nn.backends.triton.linear import Gradients, Linear
from fgnn.nn.backends.triton.replay import Pass, Programs, arithmetic, replayed

_programs: Programs = {}


@dataclass(frozen=True)
class DenseCall:
    """The part of a call that carries no gradient; operands are all x, all Θ, all β if any, all r if any."""

    count: int
    bias: bool
    residual: bool
    relu: bool
    dtype: torch.dtype
    fused: bool

    def split(self, flat: Sequence[Any]) -> list[tuple[Any, Any, Any, Any]]:
        """x, Θ, β and r of each kind of nodes; None where absent."""
        n, none = self.count, [None] * self.count
        after = (2 + self.bias) * n
        biases = flat[2 * n : after] if self.bias else none
        return list(zip(flat[:n], flat[n : 2 * n], biases, flat[after:] if self.residual else none, strict=True))


def dense(call: DenseCall, operands: Sequence[Tensor], compiled: bool) -> list[Tensor]:
    """The new features of each kind of nodes."""
    if compiled:
        out: list[Tensor] = _op(list(operands), *_options(call))
        return out[: call.count]
    if torch.is_grad_enabled() and any(x.requires_grad for x in operands):
        return list(_Dense.apply(call, *operands))  # type: ignore[no-untyped-call]
    return _forward(call, operands)[0]


def _forward(call: DenseCall, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The results, and what a ReLU let through if the results do not tell."""
    with no_autocast(operands[0].device):
        found: list[Any] = _replayed(call, (), operands, lambda: _results(call, operands))
    return found[: call.count], found[call.count :]


def _results(call: DenseCall, operands: Sequence[Tensor]) -> list[Tensor]:
    parts = call.split(operands)
    ys = linear_passes.forward([Linear(*part[:3]) for part in parts], call.relu, call.dtype, call.fused)
    if not call.residual:
        return ys
    return [part[3] + y for part, y in zip(parts, ys, strict=True)] + (ys if call.relu else [])


def _replayed(call: DenseCall, key: tuple[Any, ...], operands: Sequence[Tensor | None], run: Pass) -> list[Any]:
    if not call.fused:
        return list(run())
    return replayed(_programs, (*key, *_options(call), *arithmetic()), operands, run)[0]


def _backward(
    call: DenseCall, operands: Sequence[Tensor], ys: Sequence[Tensor], grads: Sequence[Tensor | None],
    wants: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients at all x, Θ and β, None for those not wanted; ``ys`` are read for a ReLU only."""
    with no_autocast(operands[0].device):
        return _replayed(
            call, tuple(wants), [*operands, *ys, *grads], lambda: _gradients(call, operands, ys, grads, wants)
        )


def _gradients(
    call: DenseCall, operands: Sequence[Tensor], ys: Sequence[Tensor], grads: Sequence[Tensor | None],
    wants: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    found: list[Gradients] = [(None, None, None)] * call.count
    there = [k for k, grad in enumerate(grads) if grad is not None]
    parts, wanted = call.split(operands), call.split(wants)
    some = linear_passes.backward(
        [Linear(*parts[k][:3]) for k in there], [ys[k] if call.relu else None for k in there],
        [grad.to(call.dtype) for grad in grads if grad is not None], call.dtype, call.fused,
        [wanted[k][:3] for k in there],
    )  # fmt: skip
    for k, (at_x, at_weight, at_bias) in zip(there, some, strict=True):
        x, weight, bias, _ = wanted[k]
        found[k] = at_x if x else None, at_weight if weight else None, at_bias if bias else None
    d_x, d_weight, d_bias = zip(*found, strict=True)
    return [*d_x, *d_weight, *(d_bias if call.bias else ())]


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: DenseCall, *operands: Tensor) -> tuple[Tensor, ...]:
        ys, kept = _forward(call, operands)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands, *((kept or ys) if call.relu else ()))
        ctx.call = call
        return tuple(ys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, wants = ctx.saved_tensors, ctx.needs_input_grad[1:]
        operands = saved[: len(wants)]
        found = _backward(ctx.call, operands, saved[len(wants) :], grads, wants)
        return None, *found, *_at_residuals(grads, operands[len(found) :])


def _at_residuals(grads: Sequence[Tensor | None], residuals: Sequence[Tensor]) -> list[Tensor | None]:
    return [None if g is None else g.to(r.dtype) for g, r in zip(grads, residuals, strict=False)]


# ---- for torch.compile ---------------------------------------------------------------------------------------------


def own_memory(xs: Iterable[Tensor]) -> list[Tensor]:
    """Contiguous tensors, in one launch copies of those that are parts of something larger.

    Results of an operator must not share memory.
    """
    found, parts, copies = [], [], []
    for x in xs:
        x = x.contiguous()
        if x.untyped_storage().nbytes() != x.nbytes:
            parts.append(x)
            x = torch.empty_like(x)
            copies.append(x)
        found.append(x)
    if parts:
        torch._foreach_copy_(copies, parts)
    return found


def _options(call: DenseCall) -> tuple[Any, ...]:
    return call.count, call.bias, call.residual, call.relu, call.dtype, call.fused


@torch.library.custom_op("fgnn::dense", mutates_args=())
def _op(
    operands: list[Tensor], count: int, bias: bool, residual: bool, relu: bool, dtype: torch.dtype, fused: bool
) -> list[Tensor]:
    ys, kept = _forward(DenseCall(count, bias, residual, relu, dtype, fused), operands)
    return [x.contiguous() for x in (*ys, *kept)]


@_op.register_fake
def _(
    operands: list[Tensor], count: int, bias: bool, residual: bool, relu: bool, dtype: torch.dtype, fused: bool
) -> list[Tensor]:
    call = DenseCall(count, bias, residual, relu, dtype, False)
    kept = [x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype) for x, weight, _, _ in call.split(operands)]
    if not residual:
        return kept
    wide = [torch.promote_types(dtype, r.dtype) for *_, r in call.split(operands)]
    ys = [y.new_empty(y.shape, dtype=best) for y, best in zip(kept, wide, strict=True)]
    return [*ys, *kept] if relu else ys


@torch.library.custom_op("fgnn::dense_backward", mutates_args=())
def _op_backward(
    grads: list[Tensor], given: list[bool], operands: list[Tensor], ys: list[Tensor], wants: list[bool], count: int,
    bias: bool, residual: bool, relu: bool, dtype: torch.dtype, fused: bool,
) -> list[Tensor]:  # fmt: skip
    rest = iter(grads)
    upstream = [next(rest) if there else None for there in given]
    found = _backward(DenseCall(count, bias, residual, relu, dtype, fused), operands, ys, upstream, wants)
    wanted = ((g, x) for g, x, want in zip(found, operands, wants, strict=False) if want)
    return own_memory(x.new_zeros(x.shape) if g is None else g for g, x in wanted)


@_op_backward.register_fake
def _(
    grads: list[Tensor], given: list[bool], operands: list[Tensor], ys: list[Tensor], wants: list[bool], count: int,
    bias: bool, residual: bool, relu: bool, dtype: torch.dtype, fused: bool,
) -> list[Tensor]:  # fmt: skip
    return [x.new_empty(x.shape) for x, want in zip(operands, wants, strict=True) if want]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    operands, *ctx.options = inputs
    count, _, residual, relu, _, _ = ctx.options
    ctx.save_for_backward(*operands, *((output[count:] if residual else output) if relu else ()))
    ctx.operands = len(operands)


def _through(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    count, bias, *_ = ctx.options
    saved, some, last = list(ctx.saved_tensors), grads[:count], (2 + bias) * count
    operands, residuals = saved[: ctx.operands], saved[last : ctx.operands]
    wants = [bool(wanted) and k < last for k, wanted in enumerate(ctx.needs_input_grad[0])]
    found = iter(
        _op_backward(
            [g for g in some if g is not None], [g is not None for g in some], operands, saved[ctx.operands :], wants,
            *ctx.options,
        )
    )  # fmt: skip
    flat = [next(found) if want else None for want in wants[:last]]
    return flat + _at_residuals(some, residuals), *(None,) * len(ctx.options)


_op.register_autograd(_through, setup_context=_save)
