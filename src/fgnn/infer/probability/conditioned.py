"""Loopy belief propagation conditioned on a few variables, which opens the loops through them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fgnn.infer.exact.order import graph_of
from fgnn.infer.probability.evidence import with_evidence
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.probability.sum_product import marginals_sum_product
from fgnn.pgm import ModelBatch

_FIRST = 8  # joint states of the first cut
_GROWTH = 4  # of the cut from one round to the next
_ENTRIES = 1 << 26  # numbers of all messages in a round
_SURE = 1e-9  # states of less belief are left out
_ITERATIONS = 300


def conditioned(
    batch: ModelBatch, beliefs: Beliefs, seconds: float, *, tables: bool = False, most: int = 1024, **common: Any
) -> Beliefs:
    r"""Mix the beliefs of a model given each joint state of a cut, by Bethe's log Z of each.

    .. math::
        b_i(x_i) = \sum_s w_s \, b_i(x_i \mid x_S = s), \qquad w_s \propto Z_{\text{Bethe}}(x_S = s)

    The joint states are a batch of evidence. The cut S grows from round to round while time is left; it takes the
    variables that are least certain and have the most neighbours.

    Args:
        batch: One model.
        beliefs: Its beliefs without a cut.
        seconds: Time for all rounds; a round begins only if it should end within it.
        tables: Whether to mix the marginals of tables too.
        most: Upper limit on the joint states.
        common: Options of sum-product.

    Returns:
        The beliefs of the last round, or ``beliefs`` if there was no time for one.
    """
    start = time.perf_counter()
    most = min(most, max(1, _ENTRIES // _message_entries(batch)))
    states, taken = _FIRST, 0.0
    while states <= most:
        left = seconds - (time.perf_counter() - start)
        if left <= _GROWTH * taken:
            break
        cut = choose_cut(batch, beliefs.unary[0], states)
        if not cut:
            break
        begin = time.perf_counter()
        late = not bool(beliefs.converged)  # messages that time cut short are no worse than those without a cut
        found = _mixed(batch, cut, tables, late, {**common, "time_limit": left})
        if found is None:
            break
        beliefs, taken, states = found, time.perf_counter() - begin, states * _GROWTH
    return beliefs


def choose_cut(batch: ModelBatch, belief: Tensor, states: int) -> dict[int, list[int]]:
    """Variables with the states they may have; about ``states`` joint ones.

    Args:
        belief: The variables' beliefs, (N, K).
    """
    likely = (belief > _SURE).sum(1)
    entropy = -(belief * belief.clamp(min=_SURE).log()).sum(1)  # shape: (N,)
    near = graph_of(batch.num_variables, _scopes(batch))
    cut: dict[int, list[int]] = {}
    while math.prod(len(s) for s in cut.values()) < states:
        weight = [len(near[i]) * e if likely[i] > 1 and i not in cut else 0.0 for i, e in enumerate(entropy.tolist())]
        best = max(range(len(weight)), key=weight.__getitem__)
        if weight[best] <= 0:
            break
        cut[best] = (belief[best] > _SURE).nonzero()[:, 0].tolist()
        for other in near[best]:
            near[other].discard(best)
    return cut


def _mixed(
    batch: ModelBatch, cut: dict[int, list[int]], tables: bool, late: bool, options: dict[str, Any]
) -> Beliefs | None:
    """One round; None if no joint state is feasible, or if it took too long unless ``late`` allows that."""
    joint = torch.tensor(list(product(*cut.values())), device=batch.device)
    evidence = torch.full((len(joint), batch.num_variables), -1, device=batch.device)
    evidence[:, list(cut)] = joint
    given = marginals_sum_product(with_evidence(batch, evidence), tables=tables, iterations=_ITERATIONS, **options)
    log_z = given.log_z.masked_fill(given.log_z.isnan(), -torch.inf)
    total = log_z.logsumexp(0, keepdim=True)
    if (bool(given.timed_out.any()) and not late) or not bool(total.isfinite()):
        return None
    weight = (log_z - total).exp()

    def mix(values: Tensor) -> Tensor:
        mean: Tensor = torch.tensordot(weight.to(values), values.nan_to_num(), 1)
        return mean[None]

    return replace(
        Beliefs.of(
            mix(given.unary),
            total,
            converged=given.converged.all(0, keepdim=True),
            iterations=given.iterations.amax(0, keepdim=True),
            tables=tuple(mix(t) for t in given.tables) if tables and given.tables is not None else None,
        ),
        info={"cut": len(cut), "states of the cut": len(joint)},
    )


def _scopes(batch: ModelBatch) -> Iterator[list[int]]:
    for factors in batch.factors:
        yield from factors.scopes.tolist()


def _message_entries(batch: ModelBatch) -> int:
    """Numbers in the messages and tables of one model."""
    cells = sum(t.values[0].numel() for t in batch.tables)
    return max(1, cells + sum(len(s) for s in _scopes(batch)) * batch.unary.shape[2])
