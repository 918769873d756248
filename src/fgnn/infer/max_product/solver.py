"""`max-product`: loopy belief propagation in the log domain, batched."""

from __future__ import annotations

import math
import time
from typing import Literal

import torch

from fgnn.infer.lowered import reads_structured
from fgnn.infer.max_product.fused_flooding import fused_flooding
from fgnn.infer.max_product.numbers import Rule, can_forbid
from fgnn.infer.max_product.pair_lanes import PairLanes
from fgnn.infer.max_product.run import Fused, MessageRun, RunOptions
from fgnn.infer.max_product.sweeps import flooding, residual, sequential
from fgnn.infer.max_product.wiring import Wiring
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import Answer, OnProgress
from fgnn.infer.threads import shares, side_by_side, worth_threads
from fgnn.pgm import ModelBatch

_CHOICES = {
    "schedule": ("flooding", "sequential", "residual"),
    "order": ("fixed", "random"),
    "variant": ("standard", "paper"),
    "decode": ("last", "best"),
}


@reads_structured
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
    r"""Pass messages until they converge, and let every variable take the best state of its belief.

    .. math::
        b_i(x_i) = \theta_i(x_i) + \sum_{c \ni i} m_{c \to i}(x_i), \qquad
        m_{c \to i}(x_i) = \max_{\hat x_c : \hat x_i = x_i} \Big[ \theta_c(\hat x_c)
        + \sum_{i' \in s(c), i' \ne i} \nu_{i' \to c}(\hat x_{i'}) \Big]

    with :math:`\nu_{i \to c} = b_i - m_{c \to i}` in the ``standard`` variant, and :math:`\nu_{i \to c} = b_i` in the
    ``paper`` variant, eq. (max_product) as printed (undamped: ``damping=0``). The standard variant is exact on trees.
    With loops it may not converge and its answer may violate constraints; there is no bound.

    Args:
        batch: The models.
        time_limit: Seconds after which the current messages are decoded.
        seed: Seed of the random order.
        progress: Called about twice a second.
        iterations: Upper limit on the sweeps over all factors.
        damping: Weight of the old message in an update, in [0, 1).
        schedule: ``flooding`` updates all factors at once; ``sequential`` one after another, in one order for the
            batch; ``residual`` the largest changes first, separately in each model.
        order: Of the sequential schedule: as the factors were added, or a new random order in each iteration.
        variant: ``standard`` or ``paper``.
        decode: ``last`` takes the final beliefs, as the baselines of the paper do; ``best`` decodes and scores every
            iteration and keeps the highest score.
        tolerance: A model has converged, and stops, when no undamped update would change a message by more.
        normalise: Whether the best state of a message is set to 0. If not, messages are exactly those of the equation,
            and grow.
        keep_beliefs: Whether to return the beliefs, in ``info["beliefs"]``, shape (B, N, K).

    Returns:
        The answer, with ``info["deltas"]``, shape (B, iterations done): the largest change of each iteration, 0 once a
        model has converged.
    """
    check_settings(iterations, damping, schedule=schedule, order=order, variant=variant, decode=decode)
    if batch.dtype not in (torch.float32, torch.float64):
        batch = batch.to(dtype=torch.float32)
    wiring = Wiring.of(batch, full=not normalise or can_forbid(batch))
    rule = Rule(own=variant == "paper", normalise=normalise)
    options = RunOptions(rule, iterations, damping, tolerance, schedule == "sequential", decode == "best", keep_beliefs)
    runs = pass_messages(batch, wiring, options, schedule, order, seed, deadline_after(time_limit), progress)
    return Answer.join([run.answer() for run in runs])


def pass_messages(
    batch: ModelBatch,
    wiring: Wiring,
    options: RunOptions,
    schedule: str,
    order: str,
    seed: int,
    deadline: float,
    progress: OnProgress | None,
) -> list[MessageRun]:
    """Run to the end, in several threads if that is faster; each run has its share of the models, in order."""
    rule, name = options.rule, "sum-product" if options.rule.total else "max-product"
    flood = schedule == "flooding" or not wiring.groups
    spans = shares(len(batch), wiring.num_messages, batch.device) if schedule == "flooding" else [slice(0, len(batch))]
    fused: Fused | None = None
    if flood and not options.best:
        left = deadline - time.perf_counter()
        fused = PairLanes.of(wiring, batch, left / 2) if rule.total else fused_flooding(wiring, len(batch))
    runs: list[MessageRun] = []
    for span in spans:
        if flood:
            sweep = flooding(wiring, rule)
        elif schedule == "sequential":
            sweep = sequential(wiring, rule, seed, order == "random", deadline)
        else:
            sweep = residual(wiring, rule)
        part = batch if len(spans) == 1 else batch.select(span)
        reporter = Reporter(name, None if runs else progress)
        runs.append(MessageRun(part, wiring, sweep, fused, options, deadline, reporter, runs))
    if schedule == "flooding" and worth_threads(len(batch), wiring.num_messages, batch.device):
        side_by_side([run.solve for run in runs], lambda: _stop(runs))
    else:
        runs[0].solve()
    return runs


def deadline_after(time_limit: float | None) -> float:
    """The time limit as a point in time, by ``time.perf_counter``."""
    return math.inf if time_limit is None else time.perf_counter() + time_limit


def check_settings(iterations: int, damping: float, **choices: str) -> None:
    for name, value in choices.items():
        if value not in _CHOICES[name]:
            raise ValueError(f"Expected a {name} among {', '.join(_CHOICES[name])} (got {value!r})")
    if not 0 <= damping < 1:
        raise ValueError(f"Expected a damping in [0, 1) (got {damping})")
    if iterations < 0:
        raise ValueError(f"Expected a number of iterations (got {iterations})")


def _stop(runs: list[MessageRun]) -> None:
    """Make all runs end; their answers are no longer needed."""
    for run in runs:
        run.deadline = -math.inf
