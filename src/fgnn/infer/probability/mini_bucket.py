r"""`mini-bucket`: an upper bound on log Z at any width, by weighted mini-bucket elimination.

Eliminating variable v takes the sum over the joint scope of its factors, which may be too wide. Hölder's inequality
bounds it by sums over parts of them, the mini-buckets, whose weights add up to one:

.. math:: \sum_{x_v} \prod_r F_r(x) \le \prod_r \Big( \sum_{x_v} F_r(x)^{1 / w_r} \Big)^{w_r}, \qquad \sum_r w_r = 1.

Before that, factors over :math:`x_v` alone move between the mini-buckets so that their marginals match, which tightens
the bound (Liu and Ihler, 2011). The gradient of the bound by the unaries is a set of pseudo-marginals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fgnn.infer.exact.allowed_states import allowed_states
from fgnn.infer.exact.candidates import Numbers
from fgnn.infer.exact.domains import propagate
from fgnn.infer.exact.order import Order, OutOfTime, best_order, graph_of, product_measure
from fgnn.infer.exact.problem import Limit, Problem, Relation, free_problem, ones, sum_up
from fgnn.infer.exact.solver import Clock
from fgnn.infer.probability.lowered import keeps_counters
from fgnn.infer.probability.result import Beliefs
from fgnn.infer.solution import OnProgress
from fgnn.pgm import ModelBatch

# Stands for -inf: a product with it stays finite, so that gradients have no NaN.
_NEVER = -1e30
# Joint states (log2) of a mini-bucket that is tried first, and steps between tries.
_FIRST_BITS, _BITS_STEP = 6.0, 3.0
# Seconds a try may take if there is no time limit; each try takes about 2^step times as long as the one before.
_SECONDS = 10.0
# A counter of more joint states (log2) than this counts as its largest potential, which can only raise the bound.
_WIDEST_COUNTER = 12.0


@keeps_counters
def marginals_mini_bucket(
    batch: ModelBatch,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    progress: OnProgress | None = None,
    tables: bool = False,
    bits: float | None = None,
) -> Beliefs:
    """Bound log Z from above; ``log_z`` is the bound.

    Args:
        batch: Models of one structure.
        time_limit: Seconds after which no wider mini-buckets are tried.
        seed: Of the elimination order.
        progress: Called after each try.
        tables: Not available.
        bits: log2 of the joint states of a mini-bucket; by default as many as the time allows.
    """
    if tables:
        raise ValueError("Expected tables=False: mini-bucket has no marginals of tables (got True)")
    if bits is not None and not bits >= 1:
        raise ValueError(f"Expected at least 1 bit per mini-bucket (got {bits})")
    clock = Clock(time_limit, progress, len(batch), method="mini-bucket")
    unary = torch.zeros(batch.unary.shape, dtype=torch.float64, device=batch.device)
    log_z = torch.full((len(batch),), torch.inf, dtype=torch.float64, device=batch.device)
    done, exact, used = False, False, 0.0
    try:
        problem = _problem(batch, clock)
        if problem is None:
            return Beliefs.of(unary, torch.full_like(log_z, -torch.inf), bound=log_z, exact=True)
        left_out = [limit for limit in problem.limits if not _fits(problem, limit)]
        order = _order(problem, seed, clock)
        allowance = min(_SECONDS, 0.8 * clock.seconds_left())
        used = _FIRST_BITS if bits is None else bits
        while True:
            begin = time.perf_counter()
            bound, pseudo, whole = _Buckets(batch, problem, order, used, clock).run()
            better = bound < log_z
            log_z = torch.where(better, bound, log_z)
            unary = torch.where(better[:, None, None], pseudo, unary)
            done = True
            taken = time.perf_counter() - begin
            allowance -= taken
            clock.send(f"{used:.0f} bits: log Z <= {float(log_z[0]):.6g}")
            exact = whole and not left_out
            if whole or bits is not None or allowance < taken * 2.0**_BITS_STEP:
                break
            used += _BITS_STEP
    except OutOfTime:
        pass
    log_z = torch.where(log_z < _NEVER / 2, -torch.inf, log_z)
    known = exact | (log_z == -torch.inf)
    value = log_z if done else torch.full_like(log_z, torch.nan)
    return Beliefs.of(unary, value, bound=log_z, exact=known, converged=done, timed_out=not done, info={"bits": used})


def _problem(batch: ModelBatch, clock: Clock) -> Problem | None:
    allowed = allowed_states(batch)
    live = propagate(allowed, lambda: clock.check(0, 1))
    return None if live is None else free_problem(allowed, live)


def _order(problem: Problem, seed: int, clock: Clock) -> Order:
    scopes = [r.scope for r in problem.relations] + [m.scope for m in problem.limits if _fits(problem, m)]
    graph = graph_of(len(problem.cardinalities), scopes)
    measure = product_measure(problem.cardinalities)
    left = clock.seconds_left
    return best_order(graph, problem.cardinalities, measure, seed=seed, tries=2, hopeless=0.0, seconds_left=left)


def _fits(problem: Problem, limit: Limit) -> bool:
    return sum(math.log2(problem.cardinalities[i]) for i in limit.scope) <= _WIDEST_COUNTER


@dataclass(frozen=True, eq=False)
class _Factor:
    scope: tuple[int, ...]  # in elimination order
    values: Tensor  # shape: (k_1, ..., k_n, B or 1)


class _Buckets:
    """One elimination with mini-buckets of at most ``bits`` (log2 of their joint states), with gradients."""

    def __init__(self, batch: ModelBatch, problem: Problem, order: Order, bits: float, clock: Clock) -> None:
        self.batch, self.problem, self.order, self.bits, self.clock = batch, problem, order, bits, clock
        self.place = {v: t for t, v in enumerate(order.sequence)}
        self.card_bits = [math.log2(k) for k in problem.cardinalities]
        self.numbers = Numbers(batch, torch.float64)
        self.leaves: list[Tensor] = []  # the unaries of free variables, by number

    def run(self) -> tuple[Tensor, Tensor, bool]:
        """The bound (B,), its gradient by the unaries (B, N, K), and whether no bucket was split."""
        whole = True
        with torch.enable_grad():
            total = self.batch.constant.detach().double()
            for source, entry in self.problem.constants:
                total = total + self.numbers[source][entry].clamp_min(_NEVER)
            for limit in self.problem.limits:
                if not _fits(self.problem, limit):
                    total = total + self.numbers[limit.source].amax(0).clamp_min(_NEVER)
            buckets: list[list[_Factor]] = [[] for _ in self.order.sequence]
            for factor in self._factors():
                buckets[self.place[factor.scope[0]]].append(factor)
            for t, v in enumerate(self.order.sequence):
                self.clock.check(t, len(buckets))
                parts = self._partition(buckets[t])
                whole = whole and len(parts) == 1
                for message in self._eliminate(v, parts):
                    if message.scope:
                        buckets[self.place[message.scope[0]]].append(message)
                    else:
                        total = total + message.values
                buckets[t] = []
            bound = total.expand(len(self.batch))
            gradients = torch.autograd.grad(bound.sum(), self.leaves) if self.leaves else ()
        return bound.detach(), self._by_state(gradients), whole

    def _factors(self) -> list[_Factor]:
        factors = [self._table(r) for r in self.problem.relations]
        for limit in self.problem.limits:
            if _fits(self.problem, limit):
                entries = limit.sums.entries(sum_up(limit.weights or ones(len(limit.scope))))
                factors.append(self._arranged(limit.scope, self.numbers[limit.source], entries))
        return factors

    def _table(self, relation: Relation) -> _Factor:
        assert relation.source is not None
        values = self.numbers[relation.source]
        shape = [self.problem.cardinalities[i] for i in relation.scope]
        cells = np.arange(math.prod(shape)).reshape(shape) if relation.cells is None else relation.cells
        factor = self._arranged(relation.scope, values, cells)
        if relation.source.kind == "unary":
            leaf = factor.values.expand(-1, len(self.batch)).clone().requires_grad_(True)
            self.leaves.append(leaf)
            return _Factor(factor.scope, leaf)
        return factor

    def _arranged(self, scope: Sequence[int], values: Tensor, cells: NDArray[np.int64]) -> _Factor:
        order = sorted(range(len(scope)), key=lambda a: self.place[scope[a]])
        index = torch.as_tensor(np.ascontiguousarray(np.transpose(cells, order)), device=values.device)
        columns = values[:, None] if self.numbers.single else values
        table = columns[index.reshape(-1)].clamp_min(_NEVER).view(*index.shape, columns.shape[-1])
        return _Factor(tuple(scope[a] for a in order), table)

    def _partition(self, factors: list[_Factor]) -> list[list[_Factor]]:
        """Mini-buckets: wide factors first, each into the mini-bucket that it widens least."""
        parts: list[tuple[set[int], list[_Factor]]] = []
        for factor in sorted(factors, key=lambda f: -len(f.scope)):
            scope = set(factor.scope)
            fitting = [p for p in parts if self._size(p[0] | scope) <= self.bits or scope <= p[0]]
            if fitting:
                best = min(fitting, key=lambda p: self._size(p[0] | scope) - self._size(p[0]))
                best[0].update(scope)
                best[1].append(factor)
            else:
                parts.append((scope, [factor]))
        return [members for _, members in parts]

    def _size(self, scope: set[int]) -> float:
        return sum(self.card_bits[i] for i in scope)

    def _eliminate(self, v: int, parts: list[list[_Factor]]) -> list[_Factor]:
        joint = [self._product(v, part) for part in parts]
        weight = 1.0 / len(joint)
        if len(joint) > 1:
            # shape: (k, B) each; the states that a mini-bucket excludes have no probability whatever the others say
            inner = [(f.values / weight).reshape(len(f.values), -1, f.values.shape[-1]).logsumexp(1) for f in joint]
            models = max(part.shape[1] for part in inner)
            logs = torch.stack([part.expand(-1, models) for part in inner])
            mean = logs.mean(0)
            shift = weight * torch.where((logs < _NEVER / 2).any(0), 0.0, mean - logs)
            joint = [
                _Factor(f.scope, f.values + s.view(s.shape[0], *[1] * (f.values.dim() - 2), s.shape[1]))
                for f, s in zip(joint, shift, strict=True)
            ]
        return [_Factor(f.scope[1:], weight * (f.values / weight).logsumexp(0)) for f in joint]

    def _product(self, v: int, factors: list[_Factor]) -> _Factor:
        scope = sorted({i for f in factors for i in f.scope}, key=self.place.__getitem__)
        total: Tensor | None = None
        for factor in factors:
            shape = [self.problem.cardinalities[i] if i in factor.scope else 1 for i in scope]
            values = factor.values.view(*shape, factor.values.shape[-1])
            total = values if total is None else total + values
        assert total is not None
        return _Factor(tuple(scope), total)

    def _by_state(self, gradients: Sequence[Tensor]) -> Tensor:
        """The gradients of free variables, and ones at the states of fixed variables, as (B, N, K)."""
        out = torch.zeros(self.batch.unary.shape, dtype=torch.float64, device=self.batch.device)
        for i, state in enumerate(self.problem.fixed.tolist()):
            if state >= 0:
                out[:, i, state] = 1.0
        for f, gradient in enumerate(gradients):
            states = self.problem.states[f, : len(gradient)].tolist()
            out[:, int(self.problem.variables[f]), states] = gradient.T
        return out
