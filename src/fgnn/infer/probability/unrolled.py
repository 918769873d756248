"""log Z by sum-product, with gradients at a fixed point or through a fixed number of iterations."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fgnn.infer.lowered import reads_structured
from fgnn.infer.map_tensors import map_tensors
from fgnn.infer.max_product.numbers import Numbers, can_forbid
from fgnn.infer.max_product.potentials import with_totals
from fgnn.infer.max_product.solver import check_settings
from fgnn.infer.max_product.wiring import Wiring
from fgnn.infer.probability.attach import needs_gradient
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.probability.sum_product import incoming_messages, marginals_sum_product, read_messages
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch

FORBIDDEN = -1e30


@reads_structured
def log_partition_sum_product(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    iterations: int = 200,
    damping: float = 0.5,
    schedule: Literal["flooding", "sequential", "residual"] = "flooding",
    order: Literal["fixed", "random"] = "fixed",
    tolerance: float = 1e-7,
    unroll: bool = False,
) -> Beliefs:
    """Bethe's log Z; arguments as for ``marginals(method="sum-product")``.

    Args:
        batch: The models.
        time_limit: Seconds after which the current messages are read.
        seed: Seed of the random order.
        progress: Called about twice a second.
        iterations: Upper limit on the sweeps; exactly as many if ``unroll``.
        damping: Weight of the old message in an update, in [0, 1).
        schedule: As for ``solve(method="max-product")``.
        order: Of the sequential schedule.
        tolerance: When messages have converged.
        unroll: Differentiate through the iterations, by flooding, whether or not they converge. Each iteration keeps
            its messages and recomputes the rest on the way back. Otherwise the gradient is that of a fixed point.
            Log-potentials below -1e30 count as forbidden.
    """
    if unroll:
        return _unrolled(batch, iterations, damping)
    learning = needs_gradient(batch)
    return marginals_sum_product(
        batch,
        time_limit=time_limit,
        seed=seed,
        progress=progress,
        tables=learning,
        iterations=iterations,
        damping=damping,
        schedule=schedule,
        order=order,
        tolerance=tolerance,
    )


def _unrolled(batch: ModelBatch, iterations: int, damping: float) -> Beliefs:
    """The gradients of log-sum-exp are undefined where all terms are -inf, so what is forbidden counts as -1e30 here.

    Its exponentials are exactly zero beside those of possible states, and so are its gradients. Sums that have no
    possible term are recognised by their size.
    """
    check_settings(iterations, damping)
    if batch.dtype not in (torch.float32, torch.float64):
        batch = batch.to(dtype=torch.float32)
    wiring = Wiring.of(batch, full=can_forbid(batch.detach()))
    numbers = Numbers.of(batch, wiring, total=True)
    numbers = replace(numbers, factors=tuple(map_tensors(with_totals(f), _finite) for f in numbers.factors))

    def step(messages: Tensor) -> Tensor:
        incoming = incoming_messages(wiring, numbers, messages, FORBIDDEN)
        sent = [
            f.send(group, nu, full=wiring.full, normalise=False, total=True)
            for group, f, nu in zip(wiring.groups, numbers.factors, incoming, strict=True)
        ]
        if wiring.full:
            return _blend(wiring, messages, sent, damping)
        return torch.lerp(torch.cat([m.flatten(0, 1) for m in sent]), messages, damping)

    messages = numbers.unary.new_zeros(len(wiring.belief_of), len(batch))
    for _ in range(iterations if wiring.groups else 0):
        messages = checkpoint(step, messages, use_reentrant=False)
    log_beliefs, log_zi, bethe = read_messages(batch, wiring, numbers, messages, FORBIDDEN)
    infeasible = (log_zi < FORBIDDEN / 2).any(1) | ~(bethe.abs() < -FORBIDDEN / 2)
    unary = (log_beliefs - log_zi[..., None]).exp().masked_fill(~batch.state_mask, 0.0)
    log_z = torch.where(infeasible, -torch.inf, bethe)
    return Beliefs.of(unary.detach(), log_z, exact=infeasible, converged=False, iterations=iterations)


def _blend(wiring: Wiring, messages: Tensor, sent: list[Tensor], damping: float) -> Tensor:
    """The damped messages with their flags, see `Wiring`: states that no joint state supports become impossible.

    Messages are shifted so that their best states are 0, or they would grow on loops. log Z does not depend on the
    shift, but the gradient passes through it: otherwise rounding errors would grow on the way back.
    """
    old, flags = messages.chunk(2)
    parts = [m[rows] for group, m in zip(wiring.groups, sent, strict=True) for rows in group.axes()]
    impossible = torch.cat([(m < FORBIDDEN / 2).flatten(0, 1) for m in parts])
    shifted = torch.cat([(m - m.amax(0)).flatten(0, 1) for m in parts])
    flags = torch.maximum(flags, impossible.to(flags.dtype))
    return torch.cat([torch.lerp(shifted, old, damping).masked_fill(flags > 0.5, 0.0), flags])


def _finite(numbers: Tensor) -> Tensor:
    return numbers.clamp_min(FORBIDDEN) if numbers.is_floating_point() else numbers
