r"""log Z and marginals of chains by the forward-backward recursions, one model beside the other.

.. math::
    \alpha_{t+1}(j) = \theta_{t+1}(j) + \log \sum_i \exp[\alpha_t(i) + \theta_t(i, j)], \qquad
    \beta_t(i) = \log \sum_j \exp[\theta_t(i, j) + \theta_{t+1}(j) + \beta_{t+1}(j)]

and :math:`p(x_t = i, x_{t+1} = j) \propto \exp[\alpha_t(i) + \theta_t(i, j) + \theta_{t+1}(j) + \beta_{t+1}(j)]`.
Elimination computes the same step by step for the whole batch, which is mostly overhead for small tables. Here compiled
loops on the CPU, or a kernel on a GPU, take each model through all steps. Both sum logarithms, so that nothing
underflows and ``-inf`` needs no special treatment.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fgnn.infer.exact.dense_sums import has_numba
from fgnn.pgm import ModelBatch
from fgnn.runtime.triton_support import can_launch

_DTYPES = (torch.float32, torch.float64)
_MOST_STATES = 128  # of a variable, on a GPU: a table must fit in the registers of a program


def chain_order(batch: ModelBatch) -> Tensor | None:
    """The tables in the order of the chain 0, ..., N-1; None if the structure is not a chain of equal cardinalities.

    The order is empty if it is that of the tables themselves.
    """

    def find() -> Tensor | None:
        n = batch.num_variables
        if [f.form for f in batch.factors] != ["table"] or n < 2:
            return None
        scopes = batch.tables[0].scopes
        if scopes.shape != (n - 1, 2) or int(batch.cardinalities.min()) != int(batch.cardinalities.max()):
            return None
        order = scopes[:, 0].argsort()
        first = torch.arange(n - 1, device=scopes.device)
        if not torch.equal(scopes[order], torch.stack([first, first + 1], 1)):
            return None
        return order[:0] if torch.equal(order, first) else order

    return batch.structure.derived("is a chain", find)


def chain_log_z(batch: ModelBatch, dtype: torch.dtype = torch.float64) -> Tensor | None:
    """log Z (B,) in float64, differentiable in every potential; None if the models are no chains or have no pass here.

    ``dtype`` is that of the sums on a GPU; the loops of the CPU always sum in float64.
    """
    order = chain_order(batch) if len(batch) and _has_passes(batch, dtype) else None
    if order is None:
        return None
    values = batch.tables[0].distinct("values")
    result: Tensor = _ChainLogZ.apply(order, dtype, batch.constant, batch.unary, values)  # type: ignore[no-untyped-call]
    return result


@torch.no_grad()
def chain_marginals(
    batch: ModelBatch, dtype: torch.dtype = torch.float64, *, tables: bool = False
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """log Z (B,), the marginals of variables (B, N, k) and, if asked for, of ``tables`` (B, C, k, k); None as above."""
    order = chain_order(batch) if len(batch) and _has_passes(batch, dtype) else None
    if order is None:
        return None
    values = batch.tables[0].values if tables else batch.tables[0].distinct("values")
    numbers = batch.unary.to(dtype).contiguous(), values.to(dtype).contiguous()
    passes = _passes(batch.device)
    log_z, messages = passes.forward(*numbers, order, dtype, True)
    unary, by_table = passes.backward(*numbers, order, messages, torch.ones_like(log_z))
    return batch.constant + log_z, unary.to(dtype), by_table.to(dtype) if tables else None


def _has_passes(batch: ModelBatch, dtype: torch.dtype) -> bool:
    if dtype not in _DTYPES:
        return False
    if batch.device.type == "cpu":
        return has_numba()
    return can_launch(batch.device) and batch.unary.shape[2] <= _MOST_STATES


class _ChainLogZ(torch.autograd.Function):
    """The backward recursion gives the gradient: it reads every table once more, and the messages of the forward one.

    Those are the only numbers that are stored, one row for each table.
    """

    @staticmethod
    def forward(ctx: Any, order: Tensor, dtype: torch.dtype, constant: Tensor, unary: Tensor, values: Tensor) -> Tensor:
        numbers = [_readable(unary), _readable(values)]
        keep = any(ctx.needs_input_grad)
        log_z, messages = _passes(unary.device).forward(*numbers, order, dtype, keep)
        if keep:
            ctx.save_for_backward(messages, *numbers)
            ctx.order = order
            ctx.dtypes = constant.dtype, unary.dtype, values.dtype
        total: Tensor = constant + log_z
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        messages, unary, values = ctx.saved_tensors
        found = _passes(unary.device).backward(unary, values, ctx.order, messages, weight.detach().contiguous())
        needed = zip((weight, *found), ctx.dtypes, ctx.needs_input_grad[2:], strict=True)
        return None, None, *(g.to(dtype) if need else None for g, dtype, need in needed)


def _readable(values: Tensor) -> Tensor:
    """The numbers as the loops and kernels read them."""
    return (values if values.dtype in _DTYPES else values.float()).contiguous()


def _passes(device: torch.device) -> Any:
    """The module with the passes of a device: ``forward`` and ``backward``."""
    if device.type == "cpu":
        from fgnn.infer.probability import chain_loops

        return chain_loops
    from fgnn.infer.probability import chain_launch

    return chain_launch
