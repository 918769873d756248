r"""`trw`: an upper bound on log Z by tree-reweighted sum-product.

log Z is convex in the potentials. If forests T of factors, with weights that add up to one, have potentials
:math:`\theta^T` whose weighted mean is the model's, then (Wainwright, Jaakkola and Willsky, 2005)

.. math:: \log Z(\theta) \le \sum_T w_T \log Z(\theta^T), \qquad \sum_T w_T \theta^T = \theta,

and each term on the right is the log Z of a forest, which elimination computes exactly. Factor c is in forests of total
weight :math:`\rho_c`. Messages move potentials between the forests:

.. math::
    b_i(x_i) &= \theta_i(x_i) + \sum_{c \ni i} \rho_c\, m_{c \to i}(x_i), \\
    \theta^T(x) &= \sum_i b_i(x_i) + \sum_{c \in T} \Big[ \tfrac{\theta_c(x_c)}{\rho_c}
        - \sum_{i \in s(c)} m_{c \to i}(x_i) \Big].

The bound therefore holds for any messages. At a fixed point of

.. math:: m_{c \to i}(x_i) = \log \sum_{\hat x_c : \hat x_i = x_i} \exp \Big[ \tfrac{\theta_c(\hat x_c)}{\rho_c}
    + \sum_{i' \in s(c), i' \ne i} (b_{i'} - m_{c \to i'})(\hat x_{i'}) \Big]

the forests agree on their marginals, and the bound is the lowest for these weights.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgnn.infer.exact.plan import TooLarge
from fgnn.infer.lowered import reads_structured
from fgnn.infer.max_product.numbers import Numbers, Rule, can_forbid
from fgnn.infer.max_product.potentials import with_totals
from fgnn.infer.max_product.run import MessageRun, RunOptions
from fgnn.infer.max_product.solver import check_settings, deadline_after
from fgnn.infer.max_product.sweeps import reweighted
from fgnn.infer.max_product.wiring import Wiring
from fgnn.infer.probability.exact import log_partition_exact
from fgnn.infer.probability.forests import Forests, some_factors
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.reporter import Reporter
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch

# Share of the time limit for messages; the bound takes the rest.
_MESSAGE_SHARE = 0.5
# To visit a factor while looking for a forest, and to plan its elimination.
_FACTOR_SECONDS = 2e-4


@reads_structured
def marginals_trw(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    tables: bool = False,
    iterations: int = 200,
    damping: float = 0.5,
    tolerance: float = 1e-6,
    forests: int = 8,
) -> Beliefs:
    """Bound log Z from above; ``log_z`` is the bound, and the probabilities are those that all forests agree on.

    Args:
        batch: Models of one structure.
        time_limit: Seconds; messages have half of it.
        seed: Of the forests.
        progress: Called about twice a second.
        tables: Whether to return pseudo-marginals of tables too.
        iterations: Upper limit on the sweeps over all factors. The bound holds after any number.
        damping: Weight of the old message in an update, in [0, 1).
        tolerance: A model has converged when no undamped update would change a message by more.
        forests: How many to use, if that many are enough to cover all factors.
    """
    check_settings(iterations, damping)
    if forests < 1:
        raise ValueError(f"Expected at least one forest (got {forests})")
    begin = time.perf_counter()
    batch = batch.detach().to(dtype=torch.float64)
    if time_limit is not None and _seconds(batch) > time_limit:
        loose = highest(batch)
        return Beliefs.of(torch.zeros_like(batch.unary), loose, bound=loose, converged=False, timed_out=True)
    cover = Forests.of(batch, forests, seed)
    model = _Reweighted.of(batch, cover)
    options = RunOptions(Rule(total=True), iterations, damping, tolerance, False, False, False, keep_messages=True)
    runs: list[MessageRun] = []
    deadline = deadline_after(None if time_limit is None else _MESSAGE_SHARE * time_limit)
    sweep = reweighted(model.wiring, options.rule, model.appearance)
    run = MessageRun(model.scaled, model.wiring, sweep, None, options, deadline, Reporter("trw", progress), runs)
    runs.append(run)
    with torch.no_grad():
        run.solve()
        assert run.messages is not None
        end = None if time_limit is None else begin + time_limit
        bound = model.bound(run.messages, end)
        late = bound == torch.inf
        if not bool(run.converged.all()):  # messages that do not converge may be worse than none
            bound = torch.minimum(bound, model.bound(torch.zeros_like(run.messages), end))
        bound = torch.minimum(bound, highest(batch)).masked_fill(run.infeasible, -torch.inf)
        unary, by_table = model.pseudo_marginals(run.messages, tables)
    return Beliefs.of(
        unary,
        bound,
        bound=bound,
        exact=run.converged & (len(cover.members) == 1) & ~late,
        converged=run.converged,
        iterations=run.done,
        timed_out=late,
        tables=by_table if tables else None,
        info={"forests": len(cover.members)},
    )


def _seconds(batch: ModelBatch) -> float:
    """About what the forests take: each has at most N - 1 edges more than factors."""
    scopes = [group.scopes for group in batch.structure.groups.values()]
    factors, edges = sum(map(len, scopes)), sum(s.numel() for s in scopes)
    return _FACTOR_SECONDS * factors * max(1.0, (edges - factors) / max(1, batch.num_variables - 1))


def highest(batch: ModelBatch) -> Tensor:
    """An upper bound on log Z (B,) that costs nothing: as if every factor had its largest value everywhere."""
    total = batch.constant.detach().double() + batch.unary.detach().double().logsumexp(2).sum(1)
    for f in batch.factors:
        total = total + f.potentials(torch.float64).detach().flatten(2).amax(2).sum(1)
    return total


@dataclass(frozen=True, eq=False)
class _Reweighted:
    """A batch with tables θ_c / ρ_c, wired."""

    scaled: ModelBatch
    cover: Forests
    wiring: Wiring
    numbers: Numbers
    appearance: Tensor  # shape: (Q,), ρ by message row

    @classmethod
    def of(cls, batch: ModelBatch, cover: Forests) -> _Reweighted:
        def weighed(values: Tensor, rho: Tensor) -> Tensor:
            return values / rho.view(1, -1, *(1 for _ in values.shape[2:]))

        factors = zip(batch.factors, cover.appearance, strict=True)
        scaled = batch.with_factors(
            [f.with_potentials(weighed(f.potentials(batch.dtype), rho), len(batch)) for f, rho in factors]
        )
        wiring = Wiring.of(scaled, full=can_forbid(scaled))
        rows = [rho.expand(g.height, -1).flatten() for g, rho in zip(wiring.groups, cover.appearance, strict=True)]
        appearance = torch.cat([batch.unary.new_zeros(0), *rows])
        return cls(scaled, cover, wiring, Numbers.of(scaled, wiring, total=True), appearance)

    def bound(self, messages: Tensor, end: float | None) -> Tensor:
        """The mean of the forests' log Z, (B,); +inf if that takes longer than until ``end``."""
        total = torch.zeros(len(self.scaled), dtype=torch.float64, device=self.scaled.device)
        if not self.wiring.full:  # state 0 of every variable counts as 0
            total = total + self.scaled.unary[:, :, 0].sum(1)
        for members in self.cover.members:
            left = None if end is None else end - time.perf_counter()
            if left is not None and left <= 0:
                return torch.full_like(total, torch.inf)
            part = some_factors(self.scaled, members, self._unaries(messages, members))
            try:
                log_z = log_partition_exact(part, time_limit=left, tries=0).log_z
            except TooLarge:  # no time, or no room for a large table
                return torch.full_like(total, torch.inf)
            total = total + log_z / len(self.cover.members)
        return total.masked_fill(total.isnan(), torch.inf)

    def _unaries(self, messages: Tensor, members: Sequence[Tensor]) -> Tensor:
        """Of one forest, b_i less the messages of its factors, (B, N, K)."""
        rest = messages.clone()
        for group, which, rho in zip(self.wiring.groups, members, self.cover.appearance, strict=True):
            rows = rest[group.span].view(group.height, len(group.scopes), rest.shape[1])
            rows[:, which] *= (1 - 1 / rho[which])[:, None]
        return self.wiring.padded_beliefs(self.numbers.unary, rest, normalise=False)

    def pseudo_marginals(self, messages: Tensor, tables: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Of variables (B, N, K), and of tables if asked for."""
        log_beliefs = self.wiring.padded_beliefs(self.numbers.unary, messages)
        unary = log_beliefs.softmax(2).nan_to_num(0.0).masked_fill(~self.scaled.state_mask, 0.0)
        by_table: list[Tensor] = []
        if tables:
            nu = self.wiring.beliefs(self.numbers.unary, messages).index_select(0, self.wiring.belief_of)
            nu[: len(self.appearance)] -= messages[: len(self.appearance)] / self.appearance[:, None]
            incoming = self.wiring.by_group(self.wiring.values(nu))
            for group, potentials, nu_c in zip(self.wiring.groups, self.numbers.factors, incoming, strict=True):
                if group.form == "table":
                    by_table.append(with_totals(potentials).chosen(group, nu_c, full=self.wiring.full))
        return unary, tuple(by_table)
