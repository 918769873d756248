"""`max-product`: loopy belief propagation in the log domain, batched, for tables and budgets."""

from __future__ import annotations

import math
import time
from typing import Literal

import torch

from fgnn.infer.max_product.fused_flooding import FusedFlooding, fused_flooding
from fgnn.infer.max_product.run import MessageRun
from fgnn.infer.max_product.sweeps import Rule, flooding, residual, sequential
from fgnn.infer.max_product.wiring import Wiring, can_forbid
from fgnn.infer.solution import Answer, OnProgress
from fgnn.infer.threads import shares, side_by_side, worth_threads
from fgnn.pgm import ModelBatch


def solve_max_product(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    iterations: int = 200,
    damping: float = 0.5,
    schedule: Literal["flooding", "sequential", "residual"] = "flooding",
    order: Literal["fixed", "random"] = "fixed",
    variant: Literal["standard", "paper"] = "standard",
    decode: Literal["last", "best"] = "last",
    tolerance: float = 1e-5,
    normalise: bool = True,
    keep_beliefs: bool = False,
) -> Answer:
    r"""Pass messages until they stand still, and let every variable take the best state of its belief.

    .. math::
        b_i(x_i) = \theta_i(x_i) + \sum_{c \ni i} m_{c \to i}(x_i), \qquad
        m_{c \to i}(x_i) = \max_{\hat x_c : \hat x_i = x_i} \Big[ \theta_c(\hat x_c)
        + \sum_{i' \in s(c), i' \ne i} \nu_{i' \to c}(\hat x_{i'}) \Big]

    with :math:`\nu_{i \to c} = b_i - m_{c \to i}` in the ``standard`` variant, and :math:`\nu_{i \to c} = b_i` in the
    ``paper`` variant, eq. (max_product) as printed (undamped: ``damping=0``). The standard one is exact on trees. On
    loops it may not converge and its answer may break constraints; there is no bound.

    Args:
        batch: The models.
        time_limit: Seconds after which the messages at hand are decoded.
        seed: Seeds the random order.
        progress: Called about twice a second.
        iterations: The most sweeps over all factors.
        damping: The share of the old message that is kept, in [0, 1).
        schedule: ``flooding`` updates all factors at once; ``sequential`` one after another in an order shared by the
            batch; ``residual`` the largest changes first, each model by its own.
        order: Of the sequential schedule: as the model lists its factors, or drawn anew for each iteration.
        variant: ``standard`` or ``paper``.
        decode: ``last`` takes the final beliefs, as the baselines of the paper do; ``best`` decodes every iteration
            and keeps the highest score, at the cost of scoring each.
        tolerance: A model has converged, and is left alone, when no message's undamped update would move it by more.
        normalise: Whether the best state of a message is 0. Without, messages are exactly the equation's, and grow.
        keep_beliefs: Whether to give the beliefs, in ``info["beliefs"]``, shape (B, N, K).

    Returns:
        The answer, with ``info["deltas"]`` (B, iterations done): the largest change in each iteration, 0 once a model
        has converged.
    """
    for name, value, known in (
        ("schedule", schedule, ("flooding", "sequential", "residual")),
        ("order", order, ("fixed", "random")),
        ("variant", variant, ("standard", "paper")),
        ("decode", decode, ("last", "best")),
    ):
        if value not in known:
            raise ValueError(f"Expected a {name} among {', '.join(known)} (got {value!r})")
    if not 0 <= damping < 1:
        raise ValueError(f"Expected a damping in [0, 1) (got {damping})")
    if iterations < 0:
        raise ValueError(f"Expected a number of iterations (got {iterations})")
    if batch.dtype not in (torch.float32, torch.float64):
        batch = batch.to(dtype=torch.float32)
    wiring = Wiring.of(batch, full=not normalise or can_forbid(batch))
    rule = Rule(own=variant == "paper", normalise=normalise)
    deadline = math.inf if time_limit is None else time.perf_counter() + time_limit
    crew: list[MessageRun] = []
    spans = shares(len(batch), wiring.num_messages, batch.device) if schedule == "flooding" else [slice(0, len(batch))]
    for share in spans:
        fused: FusedFlooding | None = None
        if schedule == "flooding" or not wiring.groups:
            sweep = flooding(wiring, rule)
            fused = fused_flooding(wiring, rule, len(batch)) if decode == "last" else None
        elif schedule == "sequential":
            sweep = sequential(wiring, rule, seed, random=order == "random")
        else:
            sweep = residual(wiring, rule)
        run = MessageRun(
            batch=batch if len(spans) == 1 else batch.select(share),
            wiring=wiring,
            sweep=sweep,
            fused=fused,
            in_turns=schedule == "sequential",
            iterations=iterations if wiring.groups else 0,
            rate=1.0 - damping,
            tolerance=tolerance,
            best=decode == "best",
            normalise=normalise,
            keep_beliefs=keep_beliefs,
            deadline=deadline,
            progress=None if crew else progress,
            crew=crew,
        )
        crew.append(run)
    if schedule == "flooding" and worth_threads(len(batch), wiring.num_messages, batch.device):
        side_by_side([run.solve for run in crew], lambda: _end(crew))
    else:
        crew[0].solve()
    return Answer.join([run.answer() for run in crew])


def _end(crew: list[MessageRun]) -> None:
    """Let no run go on: what it has is not asked for any more."""
    for run in crew:
        run.deadline = -math.inf
