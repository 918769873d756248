"""log Z by sum-product, with gradients at a fixed point or through a fixed number of iterations."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fgnn.infer.lowered import reads_structured
from fgnn.infer.max_product.numbers import Numbers, can_forbid
from fgnn.infer.max_product.potentials import with_totals
from fgnn.infer.max_product.solver import check_settings
from fgnn.infer.max_product.wiring import Wiring
from fgnn.infer.probability.attach import needs_gradient
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.probability.sum_product import marginals_sum_product, read_messages
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch


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
    check_settings(iterations, damping)
    if can_forbid(batch.detach()):
        raise ValueError("Expected factors that leave every state possible for unroll=True (got forbidden states)")
    wiring = Wiring.of(batch, full=False)
    numbers = Numbers.of(batch, wiring, total=True)
    factors = [with_totals(f) for f in numbers.factors]

    def step(messages: Tensor) -> Tensor:
        nu = wiring.beliefs(numbers.unary, messages).index_select(0, wiring.belief_of) - messages
        sent = [
            f.send(group, incoming, full=False, normalise=False, total=True).flatten(0, 1)
            for group, f, incoming in zip(wiring.groups, factors, wiring.by_group(nu), strict=True)
        ]
        return torch.lerp(torch.cat(sent), messages, damping) if sent else messages

    messages = numbers.unary.new_zeros(len(wiring.belief_of), len(batch))
    for _ in range(iterations):
        messages = checkpoint(step, messages, use_reentrant=False)
    log_beliefs, log_zi, bethe = read_messages(batch, wiring, numbers, messages)
    unary = (log_beliefs - log_zi[..., None]).exp().masked_fill(~batch.state_mask, 0.0)
    return Beliefs.of(unary.detach(), bethe, converged=False, iterations=iterations)
