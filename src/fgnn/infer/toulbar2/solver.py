"""`toulbar2`: branch and bound over soft arc consistency."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fgnn.errors import need
from fgnn.infer.certificate import certified
from fgnn.infer.lowered import lowers_except
from fgnn.infer.solution import Answer, OnProgress
from fgnn.infer.toulbar2.costs import SEARCHES, CostNetwork, asked
from fgnn.infer.toulbar2.schedule import Schedule
from fgnn.pgm import ModelBatch


@lowers_except(asked)
@certified
def solve_toulbar2(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    start: Tensor | None = None,
    search: str = "auto",
    jobs: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Answer:
    r"""Find the optimum by branch and bound, or the best assignment within the time limit.

    Scores become integer costs :math:`\lfloor 2^s (\max \theta_c - \theta_c) \rfloor` with the largest s that keeps
    their sum below 2^50; ``-inf`` is forbidden for every s. Bounds on sums are linear constraints, and so are the rows
    of kinds that have them. Costs are rounded down, so their minimum bounds the true optimum, from which it differs by
    less than ``factors / 2^s``. Every assignment is scored again in float64.

    Each child process is asked to stop at its time and killed if it does not; a child that dies costs one attempt. An
    interrupt (Ctrl-C) ends the search like the time limit once there is an answer.

    Args:
        start: Assignments (B, N) to improve; infeasible ones are ignored.
        search: ``hbfs``, ``btd`` or ``vns`` (see `SEARCHES`), or ``auto``: all three in turn, with growing time, each
            from the best answer so far, until one proves optimality.
        jobs: Child processes among which the batch is divided.
        settings: Further settings of toulbar2, as attributes of its option object.
    """
    need("pytoulbar2")
    if search != "auto" and search not in SEARCHES:
        raise ValueError(f"Expected a search among auto, {', '.join(SEARCHES)} (got {search!r})")
    if jobs < 1:
        raise ValueError(f"Expected at least one job (got {jobs})")
    if start is not None and tuple(start.shape) != (len(batch), batch.num_variables):
        raise ValueError(f"Expected a start of shape ({len(batch)}, {batch.num_variables}) (got {tuple(start.shape)})")
    begin = time.perf_counter()
    network = CostNetwork(batch, seed, search, dict(settings or {}))
    tasks = [network.task(b, start) for b in range(len(batch))]
    if time_limit is not None:
        time_limit = max(1e-3, time_limit - (time.perf_counter() - begin))
    interrupted = Schedule(tasks, network, time_limit, jobs, progress).run()
    for t in tasks:
        if t.exhausted and t.cost is None:
            fault = ValueError if settings else RuntimeError  # of the caller, who knows toulbar2's settings
            raise fault(f"toulbar2 failed on model {t.index}: {t.errors[-1]}")

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(t, name) for t in tasks], dtype=dtype, device=batch.device)

    assignment = torch.from_numpy(np.stack([t.best for t in tasks]) if tasks else np.zeros((0, batch.num_variables)))
    return Answer.of(
        assignment.to(batch.device, torch.int64),
        bound=column("bound", torch.float64),
        converged=column("finished", torch.bool),
        iterations=column("nodes", torch.int64),
        timed_out=~(column("finished", torch.bool) | column("exhausted", torch.bool)),
        info={"interrupted": interrupted, "errors": {t.index: t.errors for t in tasks if t.errors}},
    )
