r"""Run a plan over the log-sum-exp semiring: log Z forward, marginals backward, samples from the same messages.

The backward pass is the gradient of log Z: the probability of a state of a step's result, times the share of each
choice in its sum, is the probability of the joint state, which is added to every input that it reads,

.. math:: p(s, r) = p(s) \exp\Big(\sum_t \text{slot}_t[\text{rows}_{t,r}(s)] - \mu(s)\Big).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fgnn.infer.exact.builder import Step
from fgnn.infer.exact.candidates import Candidates, Numbers
from fgnn.infer.exact.dense_sums import log_sum_dense, shares_dense
from fgnn.infer.exact.plan import ExactPlan
from fgnn.infer.exact.problem import Source
from fgnn.infer.exact.run import follow_choices
from fgnn.infer.exact.shapes import DenseShape, ListedShape
from fgnn.pgm import ModelBatch

Check = Callable[[int, int], None]
Key = tuple[str, int]  # the kind and the group of a `Source`


class LogSum:
    """The forward pass over a batch: ``log_z`` (B,) and the results of all steps.

    The plan and the batch are on one device. ``check`` is called before every step and may raise. Without ``keep``
    there is ``log_z`` alone, in less memory.
    """

    @torch.no_grad()
    def __init__(
        self,
        plan: ExactPlan,
        batch: ModelBatch,
        dtype: torch.dtype,
        check: Check = lambda step, steps: None,
        keep: bool = True,
    ) -> None:
        assert plan.steps is not None
        assert plan.problem is not None
        self.steps, self.problem, self.check = plan.steps, plan.problem, check
        self.numbers = Numbers(batch, dtype)
        self.results: list[Tensor] = []
        total = batch.constant.detach().to(dtype)
        for t, step in enumerate(self.steps):
            check(t, len(self.steps))
            result = _log_sum(self._candidates(step))
            if not step.scope:  # the last variable of a component
                total = total + result[0]
            self.results.append(result)
            if not keep:  # only one step reads the result of another
                for child in step.children:
                    self.results[child] = result[:0]
        for source, entry in self.problem.constants:
            total = total + self.numbers[source][entry]
        self.log_z = total.expand(len(batch))

    def _candidates(self, step: Step) -> Candidates:
        inputs = [self.results[i] if isinstance(i, int) else self.numbers[i] for i in step.inputs]
        return Candidates(step.shape, inputs, self.numbers)

    # ---- marginals ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def gradient(
        self, weight: Tensor, wanted: Mapping[Key, Sequence[int]] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """The gradient of ``(weight * log_z).sum()``: for the unaries (B, N, K), and for each of some other groups.

        With a weight of one these are the probabilities of states, and of the joint states of each table or the sums of
        each counter. Where models share a group, its gradient is the sum over the models, (1, C, ...).

        Args:
            weight: Of each model, (B,); models without a feasible assignment count as zero.
            wanted: The groups, each with the shape of its numbers; by default all tables.
        """
        batch, models = self.numbers.batch, len(self.numbers.batch)
        if wanted is None:
            wanted = {("table", g): t.distinct("values").shape for g, t in enumerate(batch.tables)}
        weight = torch.where(self.log_z > -torch.inf, weight.to(self.numbers.dtype), 0.0)
        # With the axes of `Numbers`, so that the gradient of a source is added to a view.
        unary = self._zeros(*batch.unary.shape[1:], models)
        groups = {key: self._zeros(count, math.prod(entries), own) for key, (own, count, *entries) in wanted.items()}
        whole = weight if self.numbers.single else weight[None]  # of the result of a step without variables

        def add(source: Source, amount: Tensor, entry: int | slice = slice(None)) -> None:
            if source.kind == "unary":
                states = slice(len(amount)) if isinstance(entry, slice) else entry
                unary[source.index, states] += amount
            elif (source.kind, source.group) in groups:
                target = groups[source.kind, source.group][source.index, entry]
                target += amount.sum_to_size(target.shape)

        adjoints: dict[int, Tensor] = {}
        for t in reversed(range(len(self.steps))):
            self.check(t, len(self.steps))
            step = self.steps[t]
            adjoint = adjoints.pop(t) if step.scope else whole
            shares = _shares(self._candidates(step), self.results[t], adjoint)
            for i, share in zip(step.inputs, shares, strict=True):
                if isinstance(i, int):
                    adjoints[i] = share
                else:
                    add(i, share)
        for source, entry in self.problem.constants:
            add(source, whole[0], entry)

        def models_first(rows: Tensor) -> Tensor:
            return rows[None] if self.numbers.single else rows.permute(2, 0, 1)

        return models_first(unary), [models_first(groups[key]).reshape(shape) for key, shape in wanted.items()]

    def _zeros(self, *shape: int) -> Tensor:
        """Zeros with the models on the last axis, which is left out for a single model."""
        shape = shape[:-1] if self.numbers.single else shape
        return torch.zeros(shape, dtype=self.numbers.dtype, device=self.numbers.batch.device)

    # ---- samples ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Independent assignments of every model, (count, B, N); meaningless where ``log_z`` is ``-inf``."""
        models = len(self.numbers.batch)

        def choose(t: int, rows: Tensor) -> Tensor:
            """Sample the choice of each row (count * B,) by the Gumbel-max trick."""
            candidates = self._candidates(self.steps[t])
            # Relative to their sum: noise added to a large number would be rounded away.
            total = _by_model(_finite(self.results[t]), candidates, models)
            whole = total.gather(0, rows.clamp_max(len(total) - 1).view(count, models)).flatten()
            best = torch.full(rows.shape, -torch.inf, dtype=self.numbers.dtype, device=rows.device)
            chosen = torch.zeros_like(rows)
            for r in range(len(candidates)):
                values = _by_model(candidates[r], candidates, models)
                inside = rows < len(values)
                picked = values.gather(0, rows.clamp_max(len(values) - 1).view(count, models)).flatten()
                noise = torch.empty_like(best).exponential_(generator=generator).log_().neg_()
                value = torch.where(inside, picked - whole + noise, -torch.inf)
                chosen = torch.where(value > best, r, chosen)
                best = torch.maximum(best, value)
            return chosen

        flat = follow_choices(self.steps, self.problem, choose, count * models, self.numbers.batch.device)
        return flat.view(count, models, -1)


def _by_model(candidate: Tensor, candidates: Candidates, models: int) -> Tensor:
    """A candidate as (rows, B)."""
    numbers = candidates.numbers
    if isinstance(candidates.shape, DenseShape):
        candidate = candidate.reshape(candidates.shape.rows, *numbers.tail)
    return (candidate[:, None] if numbers.single else candidate).expand(-1, models)


def _log_sum(candidates: Candidates) -> Tensor:
    """The log of the sum of all candidates for each state of the result."""
    shape = candidates.shape
    if isinstance(shape, DenseShape):
        compiled = log_sum_dense(candidates, shape)
        if compiled is not None:
            return compiled
        total = _joint(candidates, shape).logsumexp(len(shape.cardinalities) - 1)
        return total.reshape(shape.rows, *candidates.numbers.tail)
    parts = [candidates[r] for r in range(len(candidates))]
    best = candidates.fresh(0)
    for r, part in enumerate(parts[1:], start=1):
        rows = candidates.prefix(best, r)
        torch.maximum(rows, part, out=rows)
    finite = _finite(best)
    total = torch.exp(parts[0] - finite)
    for r, part in enumerate(parts[1:], start=1):
        candidates.prefix(total, r).add_(torch.exp(part - candidates.prefix(finite, r)))
    return best + total.log_()


def _shares(candidates: Candidates, result: Tensor, adjoint: Tensor) -> list[Tensor]:
    """Distribute the probabilities of the result's states over the inputs of a step."""
    shape, numbers = candidates.shape, candidates.numbers
    models = len(numbers.batch)
    # Probabilities differ by model where numbers do not.
    widen = [slot if numbers.single else slot.expand(*slot.shape[:-1], models) for slot in candidates.slots]
    shares = [torch.zeros_like(slot, memory_format=torch.contiguous_format) for slot in widen]
    if isinstance(shape, ListedShape):
        for r in range(len(candidates)):
            weight = torch.exp(candidates[r] - candidates.prefix(_finite(result), r)) * candidates.prefix(adjoint, r)
            for term in shape.blocks[r]:
                _add_rows(shares[term.slot], term.rows, weight)
        for merge, share in reversed(list(zip(shape.merges, shares[len(shares) - len(shape.merges) :], strict=True))):
            for term in merge:
                _add_rows(shares[term.slot], term.rows, share)
        return shares[: len(shares) - len(shape.merges)]
    return _dense_shares(candidates, shape, result, adjoint, shares)


def _dense_shares(
    candidates: Candidates, shape: DenseShape, result: Tensor, adjoint: Tensor, shares: list[Tensor]
) -> list[Tensor]:
    compiled = shares_dense(candidates, shape, adjoint)
    if compiled is not None:
        for slot, share in zip(shape.terms, compiled, strict=True):
            shares[slot] = share
    else:
        message = (*shape.cardinalities[:-1], 1, *candidates.numbers.tail)
        weight = torch.exp(_joint(candidates, shape) - _finite(result).reshape(message)) * adjoint.reshape(message)
        for slot in shape.terms:
            shares[slot] += weight.sum_to_size(shares[slot].shape)
    inputs = len(shape.inputs)
    for slot, merge in reversed(list(enumerate(shape.merges, start=inputs))):
        for part in merge:
            shares[part] += shares[slot].sum_to_size(shares[part].shape)
    flat = []
    for at, spec in enumerate(shape.inputs):
        share = shares[at].flatten(0, len(shape.cardinalities) - 1)
        if spec.rows is not None:
            # A row of -1 stands for a state without mass.
            empty = share.new_zeros(len(candidates.inputs[at]), *share.shape[1:])
            share = empty.index_add_(0, spec.rows.clamp_min(0), share)
        flat.append(share)
    return flat


def _joint(candidates: Candidates, shape: DenseShape) -> Tensor:
    """All candidates of a full table at once, the eliminated variable on the last axis before the models."""
    total = candidates.slots[shape.terms[0]]
    for slot in shape.terms[1:]:
        total = total + candidates.slots[slot]
    return total


def _add_rows(target: Tensor, rows: Tensor | None, amount: Tensor) -> None:
    if rows is None:
        target += amount
    else:
        target.index_add_(0, rows, amount.expand(len(rows), *target.shape[1:]))


def _finite(values: Tensor) -> Tensor:
    """A reference to subtract: where it replaces -inf, every exponential of a difference is zero and not NaN."""
    return values.clamp_min(torch.finfo(values.dtype).min)
