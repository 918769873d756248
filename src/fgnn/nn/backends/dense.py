r"""Linear layers on several kinds of nodes at once, :math:`y_k = \sigma(x_k \Theta_k^\top + \beta_k) + r_k`, as one
differentiable operation: a function of autograd, and a step of compiled code.

Generated code for every bias, ReLU and residual of a network takes minutes to compile and runs no faster than the
products it surrounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fgnn.nn.backends import differentiable, linear_passes
from fgnn.nn.backends.choice import no_autocast
from fgnn.nn.backends.triton.linear import Gradients, Linear
from fgnn.nn.backends.triton.replay import Pass, Programs, arithmetic, replayed

_programs: Programs = {}


@dataclass(frozen=True)
class DenseCall:
    """The part of a call that carries no gradient; operands are all x, all r if any, all Θ, all β if any."""

    count: int
    bias: bool
    residual: bool
    relu: bool
    dtype: torch.dtype
    fused: bool

    def split(self, flat: Sequence[Any]) -> list[tuple[Any, Any, Any, Any]]:
        """x, Θ, β and r of each kind of nodes; None where absent."""
        n, none = self.count, [None] * self.count
        first = self.features
        biases = flat[first + n :] if self.bias else none
        residuals = flat[n:first] if self.residual else none
        return list(zip(flat[:n], flat[first : first + n], biases, residuals, strict=True))

    @property
    def features(self) -> int:
        """How many operands are x or r, which come first."""
        return (1 + self.residual) * self.count


def dense(call: DenseCall, operands: Sequence[Tensor]) -> list[Tensor]:
    """The new features of each kind of nodes."""
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
    """Gradients at the operands, None for those not wanted; ``ys`` are read for a ReLU only."""
    with no_autocast(operands[0].device):
        found = _replayed(
            call, tuple(wants), [*operands, *ys, *grads], lambda: _gradients(call, operands, ys, grads, wants)
        )
    n, residuals = call.count, operands[call.count : call.features]
    at = [None if g is None else g.to(r.dtype) for g, r in zip(grads, residuals, strict=False)]
    return [*found[:n], *at, *found[n:]]


def _gradients(
    call: DenseCall, operands: Sequence[Tensor], ys: Sequence[Tensor], grads: Sequence[Tensor | None],
    wants: Sequence[bool],
) -> list[Tensor | None]:  # fmt: skip
    """Gradients at all x, Θ and β."""
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
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved, wants = ctx.saved_tensors, ctx.needs_input_grad[1:]
        operands = saved[: len(wants)]
        if torch.is_grad_enabled():
            return None, *differentiable.gradients(partial(_plain, ctx.call), operands, wants, grads)
        return None, *_backward(ctx.call, operands, saved[len(wants) :], grads, wants)


def _plain(call: DenseCall, operands: Sequence[Tensor]) -> list[Tensor]:
    """The results, by operations that autograd knows."""
    found = []
    with no_autocast(operands[0].device):
        for x, weight, bias, residual in call.split(operands):
            b = None if bias is None else bias.to(call.dtype)
            y = torch.nn.functional.linear(x.to(call.dtype), weight.to(call.dtype), b)
            y = y.relu() if call.relu else y
            found.append(y if residual is None else residual + y)
    return found


# ---- in compiled code ----------------------------------------------------------------------------------------------


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


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def encode(call: DenseCall) -> str:
    """A call in words."""
    flags = f"{int(call.bias)} {int(call.residual)} {int(call.relu)} {int(call.fused)}"
    return f"{call.count} {flags} {_DTYPES.index(call.dtype)}"


def decode(words: Sequence[str], held: object, gamma: float, features: object, *, real: bool) -> DenseCall:
    """The inverse of :func:`encode`."""
    count, bias, residual, relu, fused, dtype = map(int, words)
    return DenseCall(count, bool(bias), bool(residual), bool(relu), _DTYPES[dtype], bool(fused))


def forward(call: DenseCall, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The results, and what a ReLU let through if the results do not tell."""
    ys, kept = _forward(call, operands)
    return [y.contiguous() for y in ys], [x.contiguous() for x in kept]


def sizes(call: DenseCall, operands: Sequence[Tensor]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of the results."""
    return [
        ((*x.shape[:-1], weight.shape[0]), call.dtype if r is None else torch.promote_types(call.dtype, r.dtype))
        for x, weight, _, r in call.split(operands)
    ]


def shapes(call: DenseCall, operands: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """What :func:`forward` returns, but empty."""
    ys = [operands[0].new_empty(size, dtype=dtype) for size, dtype in sizes(call, operands)]
    return ys, [y.new_empty(y.shape, dtype=call.dtype) for y in ys[: count_kept(call, operands)]]


def count_kept(call: DenseCall, operands: Sequence[Tensor]) -> int:
    """How many tensors are kept."""
    return call.count if call.residual and call.relu else 0


def backward(
    call: DenseCall, operands: Sequence[Tensor], ys: Sequence[Tensor], kept: Sequence[Tensor],
    grads: Sequence[Tensor | None], wants: Sequence[bool],
) -> Sequence[Tensor | None]:  # fmt: skip
    """Gradients at the operands."""
    return _backward(call, operands, (kept or ys) if call.relu else (), grads, wants)


def _options(call: DenseCall) -> tuple[Any, ...]:
    return call.count, call.bias, call.residual, call.relu, call.dtype, call.fused
