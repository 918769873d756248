"""`sum-product`: loopy belief propagation in the log domain, on the wiring of max-product."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fgnn.infer.lowered import reads_structured
from fgnn.infer.max_product.numbers import Numbers, Rule, can_forbid
from fgnn.infer.max_product.potentials import with_totals
from fgnn.infer.max_product.run import MessageRun, RunOptions
from fgnn.infer.max_product.solver import check_settings, deadline_after, pass_messages
from fgnn.infer.max_product.wiring import Wiring
from fgnn.infer.probability.forests import acyclic
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch


@reads_structured
def marginals_sum_product(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    tables: bool = False,
    iterations: int = 200,
    damping: float = 0.5,
    schedule: Literal["flooding", "sequential", "residual"] = "flooding",
    order: Literal["fixed", "random"] = "fixed",
    tolerance: float = 1e-7,
) -> Beliefs:
    r"""Pass messages until they converge, and normalise the beliefs.

    .. math::
        b_i(x_i) = \theta_i(x_i) + \sum_{c \ni i} m_{c \to i}(x_i), \qquad
        m_{c \to i}(x_i) = \log \sum_{\hat x_c : \hat x_i = x_i} \exp \Big[ \theta_c(\hat x_c)
        + \sum_{i' \in s(c), i' \ne i} \nu_{i' \to c}(\hat x_{i'}) \Big], \qquad \nu_{i \to c} = b_i - m_{c \to i}

    log Z is Bethe's approximation, :math:`\sum_c \log Z_c + \sum_i (1 - d_i) \log Z_i`, where :math:`Z_i` and
    :math:`Z_c` normalise the beliefs of variable i, which is in :math:`d_i` factors, and of factor c. Both are exact on
    trees, as ``exact`` then says for models in float64. Budgets send their messages in O(n · at_most), by
    counting.

    Args:
        batch: The models.
        time_limit: Seconds after which the current messages are read.
        seed: Seed of the random order.
        progress: Called about twice a second.
        tables: Whether to return the marginals of tables too.
        iterations: Upper limit on the sweeps over all factors.
        damping: Weight of the old message in an update, in [0, 1).
        schedule: As for ``solve(method="max-product")``.
        order: Of the sequential schedule.
        tolerance: A model has converged, and stops, when no undamped update would change a message by more.
    """
    check_settings(iterations, damping, schedule=schedule, order=order)
    if batch.dtype not in (torch.float32, torch.float64):
        batch = batch.to(dtype=torch.float32)
    wiring = Wiring.of(batch, full=can_forbid(batch))
    options = RunOptions(
        rule=Rule(total=True),
        iterations=iterations,
        damping=damping,
        tolerance=tolerance,
        in_turns=schedule == "sequential",
        best=False,
        keep_beliefs=False,
        keep_messages=True,
    )
    with torch.no_grad():
        runs = pass_messages(
            batch.detach(), wiring, options, schedule, order, seed, deadline_after(time_limit), progress
        )
        beliefs = Beliefs.join([_read(run, tables) for run in runs])
    forest = batch.structure.derived("is a forest", lambda: _is_forest(batch))
    precise = batch.dtype == torch.float64  # messages in float32 are right to three or four digits only
    return replace(beliefs, exact=beliefs.exact | (beliefs.converged & forest & precise))


def _read(run: MessageRun, tables: bool) -> Beliefs:
    """The beliefs of a finished run."""
    batch = run.batch
    assert run.messages is not None
    log_beliefs, log_zi, bethe = read_messages(batch, run.wiring, run.numbers, run.messages)
    by_table, structured = _factor_beliefs(run) if tables else (None, None)
    infeasible = (log_zi == -torch.inf).any(1) | run.infeasible
    log_z = torch.where(infeasible, -torch.inf, bethe)
    unary = torch.where(infeasible[:, None, None], 0.0, log_beliefs - log_zi[..., None]).exp()
    return Beliefs.of(
        unary.masked_fill(~batch.state_mask, 0.0),
        log_z,
        exact=infeasible,
        converged=run.converged,
        iterations=run.done,
        timed_out=run.timed_out,
        tables=by_table,
        structured=structured,
    )


def _factor_beliefs(run: MessageRun) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The marginals of tables, and the probabilities of the log-potentials of structured factors, by group."""
    assert run.messages is not None
    by_table: list[Tensor] = []
    structured: list[Tensor] = []
    full = run.wiring.full
    incoming = incoming_messages(run.wiring, run.numbers, run.messages)
    groups = zip(run.batch.factors, run.wiring.groups, run.numbers.factors, incoming, strict=True)
    for factors, group, potentials, nu in groups:
        if factors.num_terms:
            chosen = by_table if factors.form == "table" else structured
            chosen.append(with_totals(potentials).chosen(group, nu, full=full))
    return tuple(by_table), tuple(structured)


def incoming_messages(
    wiring: Wiring, numbers: Numbers, messages: Tensor, forbidden: float = -torch.inf
) -> list[Tensor]:
    """What the factors of each group receive, (height, C, B); ``forbidden`` for impossible states."""
    rows = wiring.beliefs(numbers.unary, messages)
    return wiring.by_group(wiring.values(rows.index_select(0, wiring.belief_of) - messages, forbidden))


def read_messages(
    batch: ModelBatch, wiring: Wiring, numbers: Numbers, messages: Tensor, forbidden: float = -torch.inf
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-beliefs (B, N, K), log Z_i (B, N) and Bethe's log Z (B,); ``forbidden`` stands for impossible states."""
    log_beliefs = wiring.padded_beliefs(numbers.unary, messages, normalise=False).double()  # shape: (B, N, K)
    log_beliefs = log_beliefs.clamp_min(forbidden)
    log_zi = log_beliefs.logsumexp(2)  # shape: (B, N)
    nu = incoming_messages(wiring, numbers, messages, forbidden)
    degree = torch.zeros(batch.num_variables, dtype=torch.float64, device=batch.device)
    total = batch.constant.double()
    if not wiring.full:  # state 0 of every variable counts as 0
        total = total + batch.unary[:, :, 0].double().sum(1)
    for g, (group, incoming) in enumerate(zip(wiring.groups, nu, strict=True)):
        log_zc = with_totals(numbers.factors[g]).log_total(group, incoming, full=wiring.full)
        total = total + log_zc.double().sum(0)
        degree.index_add_(0, group.scopes.flatten(), torch.ones_like(degree[:1]).expand(group.scopes.numel()))
    weighted = torch.where(degree == 1, 0.0, (1 - degree) * log_zi)
    return log_beliefs, log_zi, total + weighted.sum(1)


def _is_forest(batch: ModelBatch) -> bool:
    """Whether the factor graph has no cycle."""
    scopes = [scope for group in batch.structure.groups.values() for scope in group.scopes.tolist()]
    return len(acyclic(batch.num_variables, scopes, np.arange(len(scopes)))) == len(scopes)
