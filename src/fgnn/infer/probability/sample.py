"""`sample`: exact, independent samples by elimination."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.exact.log_sum import LogSum
from fgnn.infer.exact.solver import Clock
from fgnn.infer.lowered import counts
from fgnn.infer.magnitude import check_magnitude
from fgnn.infer.probability.elimination import Elimination
from fgnn.infer.probability.evidence import Evidence, with_evidence
from fgnn.infer.probability.precision import centred
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.pgm.lowering import lower


def sample(
    model: GraphicalModel | ModelBatch, count: int, *, evidence: Evidence = None, seed: int = 0, **options: Any
) -> NDArray[np.int64] | Tensor:
    """Draw assignments from p(x) = exp(θ(x)) / Z: a forward elimination, then one choice per variable on the way back.

    Args:
        model: One model, or a `ModelBatch`.
        count: How many assignments of each model.
        evidence: Observed states, as for `marginals`.
        seed: The same seed draws the same assignments.
        options: Of elimination: ``max_states``, ``memory``, ``tries``.

    Returns:
        An array (count, N) for one model, a tensor (count, B, N) for a batch.

    Raises:
        ValueError: A model has no feasible assignment, or elimination needs more states or memory than allowed.
    """
    if count < 0:
        raise ValueError(f"Expected a number of samples (got {count})")
    batch = ModelBatch.stack([model]) if isinstance(model, GraphicalModel) else model
    check_magnitude(batch)
    batch, _ = centred((batch if evidence is None else with_evidence(batch, evidence)).detach())
    own, batch = batch.num_variables, lower(batch, keep=counts).batch
    elimination = Elimination.of(batch, Clock(None, None, len(batch)), **options)
    generator = torch.Generator(device=batch.device).manual_seed(seed)
    drawn = torch.zeros(count, len(batch), own, dtype=torch.int64, device=batch.device)

    def work(part: slice, run: LogSum) -> None:
        impossible = (run.log_z == -torch.inf).nonzero()
        if len(impossible):
            raise _infeasible(part.start + int(impossible[0]), len(batch))
        drawn[:, part] = run.sample(count, generator)[..., :own]

    if elimination.impossible and len(batch):
        raise _infeasible(0, len(batch))
    elimination.each_slice(work, threads=False)  # one generator, read in the order of the models
    return drawn[:, 0].cpu().numpy() if isinstance(model, GraphicalModel) and len(batch) == 1 else drawn


def _infeasible(model: int, models: int) -> ValueError:
    where = f"model {model}" if models > 1 else "the model"
    return ValueError(f"Expected a feasible assignment to sample (got none: {where} forbids all)")
