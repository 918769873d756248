"""`marginals` and `log_partition`: one entry point to every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from fgnn.infer.magnitude import check_magnitude
from fgnn.infer.methods import check_options, named
from fgnn.infer.oom_retry import call_with_retry
from fgnn.infer.probability.attach import needs_gradient, with_gradient
from fgnn.infer.probability.evidence import Evidence, with_evidence
from fgnn.infer.probability.lowered import lowers_beliefs
from fgnn.infer.probability.precision import centred, certified
from fgnn.infer.probability.result import Beliefs, LogPartition, Marginals, MarginalsBatch, conclude
from fgnn.infer.solution import OnProgress
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.runtime.devices import check_device

Method = Callable[..., Beliefs]  # (batch, *, time_limit, seed, progress, tables, **options) -> Beliefs

# A method by name, as a function or as "module:function", which is imported at its first use.
METHODS: dict[str, Method | str] = {
    "auto": "fgnn.infer.probability.auto:marginals_auto",
    "brute-force": "fgnn.infer.probability.brute_force:marginals_brute_force",
    "exact": "fgnn.infer.probability.exact:marginals_exact",
    "mini-bucket": "fgnn.infer.probability.mini_bucket:marginals_mini_bucket",
    "sum-product": "fgnn.infer.probability.sum_product:marginals_sum_product",
    "trw": "fgnn.infer.probability.trw:marginals_trw",
}
# log Z alone, where that is cheaper than the marginals or differentiable through the method.
LOG_PARTITIONS: dict[str, Method | str] = {
    "auto": "fgnn.infer.probability.auto:log_partition_auto",
    "exact": "fgnn.infer.probability.exact:log_partition_exact",
    "sum-product": "fgnn.infer.probability.unrolled:log_partition_sum_product",
}


@overload
def marginals(
    model: GraphicalModel,
    method: str | Method = ...,
    *,
    evidence: Mapping[int, int] | None = ...,
    tables: bool = ...,
    time_limit: float | None = ...,
    device: torch.device | str | None = ...,
    seed: int = ...,
    progress: OnProgress | None = ...,
    **options: Any,
) -> Marginals: ...
@overload
def marginals(
    model: GraphicalModel | ModelBatch,
    method: str | Method = ...,
    *,
    evidence: Evidence = ...,
    tables: bool = ...,
    time_limit: float | None = ...,
    device: torch.device | str | None = ...,
    seed: int = ...,
    progress: OnProgress | None = ...,
    **options: Any,
) -> MarginalsBatch: ...
def marginals(
    model: GraphicalModel | ModelBatch,
    method: str | Method = "auto",
    *,
    evidence: Evidence = None,
    tables: bool = False,
    time_limit: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    **options: Any,
) -> Marginals | MarginalsBatch:
    r"""Compute the probability of every state of every variable, and log Z.

    .. math:: p(x_i) = \frac{1}{Z} \sum_{x \setminus x_i} \exp \theta(x), \qquad Z = \sum_x \exp \theta(x)

    Args:
        model: One model, or a `ModelBatch` of models with the same structure.
        method: A name in ``METHODS`` (``auto``, ``brute-force``, ``exact``, ``mini-bucket``,
            ``sum-product``, ``trw``), or a method function.
        evidence: Observed states: ``{variable: state}``, or a matrix (E, N) with -1 for what is not observed. A matrix
            has a row per model; with a single model every row is a query, and the answer is a batch.
        tables: Whether to return the marginals of tables too.
        time_limit: Seconds; what is not done by then has status ``time-limit``.
        device: Where to compute; by default the batch's device, the CPU for a single model.
        seed: Seeds the random choices of a method.
        progress: Called with updates during long runs.
        options: The method's own, e.g. ``iterations=200, damping=0.5`` for ``sum-product``.
    """
    start = time.perf_counter()
    batch, order, size = _as_batch(model, device, evidence)
    common = {"time_limit": time_limit, "seed": seed, "progress": progress}
    beliefs = _call(batch.detach(), size, method, METHODS, {"tables": tables}, common, options)
    answers = conclude(batch, beliefs, time.perf_counter() - start, order)
    single = isinstance(model, GraphicalModel) and (evidence is None or isinstance(evidence, Mapping))
    return answers[0] if single else answers


def log_partition(
    model: GraphicalModel | ModelBatch,
    method: str | Method = "auto",
    *,
    evidence: Evidence = None,
    time_limit: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    **options: Any,
) -> LogPartition:
    r"""Compute :math:`\log Z = \log \sum_x \exp \theta(x)`; arguments as for `marginals`.

    The ``value`` of a batch whose tensors require gradients is differentiable, and its gradient is the marginals.
    """
    start = time.perf_counter()
    batch, _, size = _as_batch(model, device, evidence)
    common = {"time_limit": time_limit, "seed": seed, "progress": progress}
    alone = method in LOG_PARTITIONS if isinstance(method, str) else False
    learning = needs_gradient(batch)
    methods = LOG_PARTITIONS if alone else METHODS
    fixed = {} if alone else {"tables": learning}
    beliefs = _call(batch, size, method, methods, fixed, common, options)
    if learning and not beliefs.log_z.requires_grad:
        if beliefs.tables is None and (
            batch.tables or batch.structured
        ):  # `auto` fell back on a method that approximates
            beliefs = _call(batch, size, beliefs.method, METHODS, {"tables": True}, common, {})
        beliefs = replace(beliefs, log_z=with_gradient(batch, beliefs))
    bound = torch.where(beliefs.exact, beliefs.log_z.detach(), beliefs.bound)
    seconds = time.perf_counter() - start
    if isinstance(model, GraphicalModel) and (evidence is None or isinstance(evidence, Mapping)):
        value, exact = float(beliefs.log_z[0]), bool(beliefs.exact[0])
        return LogPartition(value, float(bound[0]), exact, seconds, beliefs.method)
    return LogPartition(beliefs.log_z, bound, beliefs.exact, seconds, beliefs.method)


def _as_batch(
    model: GraphicalModel | ModelBatch, device: torch.device | str | None, evidence: Evidence
) -> tuple[ModelBatch, list[NDArray[np.int64]], float]:
    """The models as a batch with their evidence, by group the order in which its tables were added, and the models'
    largest size, see `check_magnitude`."""
    if device is not None:
        check_device(device)
    if isinstance(model, GraphicalModel):
        batch = ModelBatch.stack([model], device=device or "cpu")
        order = [group.index for group in model.table_groups]
    elif isinstance(model, ModelBatch):
        batch = model if device is None else model.to(device)
        ends = np.cumsum([0, *(len(t.scopes) for t in batch.tables)]).tolist()
        order = [np.arange(a, b) for a, b in pairwise(ends)]
    else:
        raise TypeError(f"Expected a GraphicalModel or a ModelBatch (got {type(model).__name__})")
    size = check_magnitude(batch)
    return (batch if evidence is None else with_evidence(batch, evidence)), order, size


def _call(
    batch: ModelBatch,
    size: float,
    method: str | Method,
    methods: Mapping[str, Method | str],
    fixed: dict[str, Any],
    common: dict[str, Any],
    options: dict[str, Any],
) -> Beliefs:
    """Call the method with the arguments that are ``fixed``, those ``common`` to all and the options that it accepts.

    ``size`` is that of `check_magnitude`.
    """
    name = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
    function = named(method, methods) if isinstance(method, str) else method
    check_options(name, function, options, reserved=tuple(fixed))
    time_limit = common["time_limit"]
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit > 0):
        raise ValueError(f"Expected a positive time limit in seconds (got {time_limit!r})")
    if batch.structured and not getattr(function, "reads_structured", False):
        function = lowers_beliefs(function)
    models, offset = centred(batch, size)
    beliefs = call_with_retry(function, models, Beliefs.join, **common, **fixed, **options)
    beliefs = certified(models, beliefs, offset)
    return beliefs if beliefs.method else replace(beliefs, method=name)
