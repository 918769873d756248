"""`max-product`: loopy belief propagation in the log domain, batched, for tables and budgets."""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import torch
from torch import Tensor

from fgnn.infer.solution import Answer, OnProgress, Progress
from fgnn.infer.sweeps import Rule, Sweep, flooding, residual, sequential
from fgnn.infer.wiring import Numbers, Wiring, can_forbid
from fgnn.pgm import ModelBatch

# Message bytes worked on at once: about what the caches hold on a CPU, and a share of the memory on a GPU.
_CPU_BYTES = 1 << 20
_CPU_BYTES_IN_TURNS = 1 << 22
_GPU_BYTES = 1 << 28
# Iterations between looks at what has converged: each look waits for the device.
_CHECK_EVERY = 8
_NEWS_EVERY_SECONDS = 0.5


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
    if schedule == "flooding" or not wiring.groups:
        sweep = flooding(wiring, rule)
    elif schedule == "sequential":
        sweep = sequential(wiring, rule, seed, random=order == "random")
    else:
        sweep = residual(wiring, rule)
    run = _Run(
        batch=batch,
        wiring=wiring,
        sweep=sweep,
        in_turns=schedule == "sequential",
        iterations=iterations if wiring.groups else 0,
        rate=1.0 - damping,
        tolerance=tolerance,
        best=decode == "best",
        normalise=normalise,
        keep_beliefs=keep_beliefs,
        deadline=math.inf if time_limit is None else time.perf_counter() + time_limit,
        progress=progress,
    )
    run.solve()
    return run.answer()


class _Run:
    """The answers of a batch, filled in as its models stop moving.

    A pool of models is worked on at once, as many as fit the caches or the memory. Those that have stopped make room
    for those that wait, so that the work stays in large operations until the last.
    """

    def __init__(
        self,
        batch: ModelBatch,
        wiring: Wiring,
        sweep: Sweep,
        in_turns: bool,
        iterations: int,
        rate: float,
        tolerance: float,
        best: bool,
        normalise: bool,
        keep_beliefs: bool,
        deadline: float,
        progress: OnProgress | None,
    ) -> None:
        self.batch, self.wiring, self.sweep, self.in_turns = batch, wiring, sweep, in_turns
        self.iterations, self.rate, self.tolerance = iterations, rate, tolerance
        self.best, self.normalise = best, normalise
        self.started, self.deadline, self.progress = time.perf_counter(), deadline, progress
        self.news_due = self.started + _NEWS_EVERY_SECONDS
        self.turns = 0
        self.numbers = Numbers.of(batch, wiring)
        count, device = len(batch), batch.device
        self.assignment = torch.zeros(count, batch.num_variables, dtype=torch.int64, device=device)
        self.score = torch.full((count,), -torch.inf, dtype=torch.float64, device=device)
        self.done = torch.zeros(count, dtype=torch.int64, device=device)
        self.converged = torch.zeros(count, dtype=torch.bool, device=device)
        self.timed_out = torch.zeros_like(self.converged)
        self.impossible = torch.zeros_like(self.converged)
        self.deltas = torch.zeros(min(iterations, 256), count, dtype=batch.dtype, device=device)
        self.beliefs = torch.zeros_like(batch.unary) if keep_beliefs else None

    def solve(self) -> None:
        """Pass messages until all models stand still, or iterations or time run out."""
        count, device = len(self.batch), self.batch.device
        every = _CHECK_EVERY if device.type == "cuda" else 1
        width, waiting, turn = self._width(), 0, 0
        models = torch.zeros(0, dtype=torch.int64, device=device)
        active = torch.zeros(0, dtype=torch.bool, device=device)
        messages = self._silence(0)
        numbers = self.numbers
        while True:
            if turn % every == 0:
                late = time.perf_counter() > self.deadline
                left = int(active.sum())
                if late or self.iterations == 0:
                    self._stop(models, active, messages, range(waiting, count, width), late)
                    return
                if 2 * left <= len(models):
                    self._retire(models[~active], messages[:, ~active])
                    # under a shared order all models of a pool are at the same iteration, so none may join
                    fresh = min(width - left, count - waiting) if left == 0 or not self.in_turns else 0
                    models = torch.cat([models[active], torch.arange(waiting, waiting + fresh, device=device)])
                    messages = torch.cat([messages[:, active], self._silence(fresh)], 1)
                    active = torch.ones_like(models, dtype=torch.bool)
                    numbers = self.numbers.columns(models)
                    waiting += fresh
                    if left == 0:
                        turn = 0
                    if not len(models):
                        return
                self._tell(f"{count - waiting + int(active.sum())} of {count} models still move", numbers, messages)
            messages, change = self.sweep(numbers, messages, active.to(messages.dtype) * self.rate, turn)
            turn += 1
            self._record(models, active, change)
            self.converged[models] |= active & (change <= self.tolerance)
            active = active & (change > self.tolerance) & (self.done[models] < self.iterations)
            if self.best:
                self._consider(models, numbers, messages)

    def answer(self) -> Answer:
        info: dict[str, Any] = {"deltas": self.deltas[: int(self.done.max()) if len(self.batch) else 0].t()}
        if self.beliefs is not None:
            info["beliefs"] = self.beliefs
        return Answer.of(
            self.assignment,
            proved=self.impossible,
            converged=self.converged,
            iterations=self.done,
            timed_out=self.timed_out,
            info=info,
        )

    def _silence(self, count: int) -> Tensor:
        return self.numbers.unary.new_zeros(self.wiring.belief_of.shape[0], count)

    def _width(self) -> int:
        """How many models to work on at once: what fits with the messages and the largest group of tables."""
        cells = max((t.values[0].numel() for t in self.batch.tables), default=0)
        each = (len(self.wiring.belief_of) + cells + 1) * self.batch.unary.element_size()
        on_cpu = _CPU_BYTES_IN_TURNS if self.in_turns else _CPU_BYTES
        return max(1, (on_cpu if self.batch.device.type == "cpu" else _GPU_BYTES) // each)

    def _stop(self, models: Tensor, active: Tensor, messages: Tensor, waiting: range, late: bool) -> None:
        """Read off every answer as it stands: those in the pool, and those that never came into it."""
        self._retire(models, messages)
        self.timed_out[models] = active
        for at in waiting:
            rest = torch.arange(at, min(at + waiting.step, waiting.stop), device=models.device)
            self._retire(rest, self._silence(len(rest)))
            self.timed_out[rest] = late
            self.converged[rest] = not late and not self.wiring.groups

    def _record(self, models: Tensor, active: Tensor, change: Tensor) -> None:
        """Count the iteration and note its change, for the models that moved."""
        done = self.done[models]
        if self.turns >= len(self.deltas) and len(self.deltas) < self.iterations:
            self.deltas = torch.cat([self.deltas, torch.zeros_like(self.deltas)])[: self.iterations]
        self.turns += 1
        self.deltas[done.clamp(max=len(self.deltas) - 1), models] += torch.where(active, change, 0.0)
        self.done[models] = done + active

    def _consider(self, models: Tensor, numbers: Numbers, messages: Tensor) -> None:
        """Keep what the present beliefs decode to where it scores higher than all before."""
        candidate = self._decode(numbers, messages)
        score = self.batch.select(models).score(candidate)
        better = score > self.score[models]
        self.score[models] = torch.where(better, score, self.score[models])
        self.assignment[models] = torch.where(better[:, None], candidate, self.assignment[models])

    def _decode(self, numbers: Numbers, messages: Tensor) -> Tensor:
        """Each variable's best state, the lowest of equals, shape (B, N)."""
        beliefs = self.wiring.beliefs(numbers.unary, messages)
        return self.wiring.padded_beliefs(beliefs, normalise=False).argmax(2)

    def _retire(self, models: Tensor, messages: Tensor) -> None:
        """Read the answers off the messages: each variable's best state, the lowest of equals."""
        rows = self.wiring.beliefs(self.numbers.columns(models).unary, messages)
        beliefs = self.wiring.padded_beliefs(rows, self.normalise)
        last = beliefs.argmax(2)
        if self.best:
            none = self.score[models] == -torch.inf
            last = torch.where(none[:, None], last, self.assignment[models])
        self.assignment[models] = last
        # a state is only ever ruled out by proof, so a variable without states proves that there is no answer
        self.impossible[models] = (beliefs == -torch.inf).all(2).any(1)
        if self.beliefs is not None:
            self.beliefs[models] = beliefs

    def _tell(self, note: str, numbers: Numbers, messages: Tensor) -> None:
        now = time.perf_counter()
        if self.progress is None or now < self.news_due:
            return
        self.news_due = now + _NEWS_EVERY_SECONDS
        if len(self.batch) > 1:
            self.progress(Progress("max-product", now - self.started, -math.inf, math.inf, note))
            return
        found = self.assignment if self.best else self._decode(numbers, messages)
        note = f"iteration {self.turns}"
        score = float(self.batch.score(found))
        self.progress(Progress("max-product", now - self.started, score, math.inf, note, assignment=found))
