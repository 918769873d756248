"""`dual`: an upper bound that falls with every sweep, and the assignments it rounds to."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor

from fgnn.errors import need
from fgnn.infer.certificate import certified
from fgnn.infer.dual.descent import Descent
from fgnn.infer.dual.layout import build_layout
from fgnn.infer.lowered import counting, lowers_except
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import Answer, OnProgress
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.runtime.jit import Background


@lowers_except(counting)
@certified
def solve_dual(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    iterations: int = 1000,
    tolerance: float = 1e-6,
    tighten: bool = True,
    start: Tensor | None = None,
) -> Answer:
    r"""Bound the optimum by sequential message passing on the dual of the local-polytope relaxation.

    .. math:: D(\delta) = \sum_i \max_s \Big(\theta_i(s) - \sum_{c \ni i} \delta_{ci}(s)\Big)
        + \sum_c \max_{x_c} \Big(\theta_c(x_c) + \sum_{i \in c} \delta_{ci}(x_i)\Big)

    A sweep visits the variables in order, collects the max-marginals of all factors at each, and gives every factor
    that goes on its share (TRW-S for pairs, SRMP for any arity: Kolmogorov, 2006 and 2015). No step raises the bound.
    Where sweeps stall above the optimum of the relaxation, AD3 takes over for a while. After that, cycles of three or
    four pairs become clusters, those first that lower the bound most (Sontag et al., 2008); they exchange max-marginals
    with their pairs. ``bound`` is computed from the model and δ, rounding errors included.

    A factor that depends on a sum is one subproblem, solved over partial sums that a sweep extends from variable to
    variable: O(n · range) for all its max-marginals. Others become tables over auxiliary variables.

    States that no factor can complete are removed, which proves some models infeasible.

    Args:
        batch: The models, solved one after another on a CPU core.
        time_limit: Seconds for all of them.
        seed: Unused: the method is deterministic.
        progress: Called with the best score and bound of the current model.
        iterations: Upper limit on the sweeps, forward and backward, of each model.
        tolerance: The bound has converged if it falls by less per sweep, relative to half the sum of factor ranges,
            and no cluster helps.
        tighten: Whether to add clusters.
        start: Assignments (B, N) to improve: the descent of a model ends where its bound meets the better score.
    """
    if start is not None and tuple(start.shape) != (len(batch), batch.num_variables):
        raise ValueError(f"Expected a start of shape ({len(batch)}, {batch.num_variables}) (got {tuple(start.shape)})")
    if iterations < 1 or not tolerance > 0:
        raise ValueError(f"Expected a positive number of iterations and tolerance (got {iterations} and {tolerance})")
    need("numba")
    host = batch.to("cpu")
    deadline = math.inf if time_limit is None else time.perf_counter() + time_limit
    reporter = Reporter("dual", progress)
    if not len(host) or not KERNELS.wait(deadline - time.perf_counter()):
        return Answer.of(batch.unary.argmax(2), bound=0.0, converged=False, timed_out=bool(len(host)))
    layout = build_layout(host)
    descents = []
    for b in range(len(host)):
        left = deadline - time.perf_counter()
        share = time.perf_counter() + left / (len(host) - b)
        descent = Descent(host.select(slice(b, b + 1)), layout, reporter)
        if start is not None:
            descent.offer(start[b].cpu().numpy().astype(np.int64))
        descent.run(share, iterations, tolerance, tighten=tighten)
        descents.append(descent)
    return Answer.of(
        torch.from_numpy(np.stack([d.states for d in descents])).to(batch.device),
        bound=torch.tensor([d.bound for d in descents], dtype=torch.float64, device=batch.device),
        converged=torch.tensor([d.converged for d in descents], dtype=torch.bool, device=batch.device),
        iterations=torch.tensor([d.sweeps for d in descents], dtype=torch.int64, device=batch.device),
        timed_out=torch.tensor([d.timed_out for d in descents], dtype=torch.bool, device=batch.device),
        info={"clusters": torch.tensor([d.clusters for d in descents])},
    )


def _warm_up() -> None:
    """Call every compiled loop once, on a tiny model."""
    model = GraphicalModel([2, 2, 3])
    model.add_table((0, 2), -np.ones((2, 3)))
    model.add_linear((0, 1, 2), [1, 1, 2], at_most=1)
    batch = ModelBatch.stack([model])
    Descent(batch, build_layout(batch), Reporter("dual", None)).run(math.inf, 2, 1e-6, tighten=False)


KERNELS = Background(_warm_up)
