"""A conditional random field as the last layer of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgnn.infer import MarginalsBatch, SolutionBatch, log_partition, marginals, sample, solve
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.pgm.conditionals import conditionals

Learn = Literal["shared", "each"] | None


class CRF(nn.Module):
    r"""A distribution over the assignments of a factor graph, whose scores come from a network:

    .. math:: p(x) = \frac{1}{Z} \exp \Big( \sum_i \theta_i(x_i) + \sum_c \theta_c(x_c) \Big), \qquad x \text{ feasible}

    The scopes, the constraints and fixed potentials are those of a template. Scores of variables and tables are added
    to them: from a network, as parameters of this layer (``learn``), or both. Budgets and ``-inf`` entries are
    respected exactly: no probability is wasted on infeasible assignments.

    Args:
        template: The graph. A group of tables has one shape, as in `GraphicalModel.table_groups`.
        learn: ``"shared"`` learns one table for every group, ``"each"`` one for every factor; None learns nothing.
        method: Of log Z and the marginals: ``auto``, ``exact`` or ``sum-product``.
        options: Further options of the method.

    Shapes:
        unary (B, N, K), where K is the largest number of states; tables by group, (B, C, k_1, ..., k_A), or
        (C, k_1, ..., k_A) or (k_1, ..., k_A) if samples or factors share them; x (B, N), int64.

    Example:
        >>> template = fgnn.GraphicalModel([5] * 20)
        >>> template.add_tables([(i, i + 1) for i in range(19)], np.zeros((19, 5, 5)))
        >>> crf = fgnn.nn.CRF(template, learn="shared")
        >>> words, network = torch.randn(8, 20, 16), torch.nn.Linear(16, 5)
        >>> loss = -crf.log_prob(torch.randint(5, (8, 20)), network(words)).mean()
        >>> crf.map(network(words)).assignment.shape
        torch.Size([8, 20])
    """

    def __init__(
        self, template: GraphicalModel, *, learn: Learn = "shared", method: str = "auto", **options: Any
    ) -> None:
        super().__init__()
        if learn not in ("shared", "each", None):
            raise ValueError(f"Expected learn 'shared', 'each' or None (got {learn!r})")
        self.learn, self.method, self.options = learn, method, options
        self._template = ModelBatch.stack([template], dtype=torch.float32)
        groups = self._template.tables if learn else ()
        shapes = [t.shape if learn == "shared" else t.values.shape[1:] for t in groups]
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def on(self, template: GraphicalModel) -> CRF:
        """The same parameters on another graph, such as a sentence of another length; ``learn`` must be ``"shared"``.

        Tables of one shape share their parameters, so the template must have groups of the same shapes.
        """
        other = CRF(template, learn=None, method=self.method, **self.options)
        shapes = [tuple(t.shape) for t in other._template.tables]
        if self.learn == "each" or (self.learn and shapes != [tuple(p.shape) for p in self.tables]):
            raise ValueError(
                f"Expected shared tables of shapes {[tuple(p.shape) for p in self.tables]} "
                f"(got {shapes} and learn={self.learn!r})"
            )
        other.learn, other.tables = self.learn, self.tables
        return other

    def models(self, unary: Tensor, tables: Sequence[Tensor | None] = ()) -> ModelBatch:
        """The models of the distribution of each sample, for every function that takes a `ModelBatch`."""
        base = self._on(unary)
        if unary.dim() != 3 or unary.shape[1:] != base.unary.shape[1:]:
            raise ValueError(
                f"Expected unary scores (B, {', '.join(map(str, base.unary.shape[1:]))}) (got {tuple(unary.shape)})"
            )
        if len(tables) not in (0, len(base.tables)):
            raise ValueError(f"Expected scores for {len(base.tables)} groups of tables (got {len(tables)})")
        count = unary.shape[0]
        groups = []
        for g, t in enumerate(base.tables):
            values, scores = t.values.to(unary.dtype), tables[g] if tables else None
            if self.learn:
                values = values + self.tables[g].to(unary.dtype)
            if scores is not None:
                self._check_tables(g, scores, count, t.values.shape[1:])
                values = values + scores
            shared = frozenset(("values",)) if len(values) == 1 else frozenset[str]()
            groups.append(replace(t, values=values.expand(count, *values.shape[1:]), shared=shared))
        repeated = base.repeat(count)
        return replace(
            repeated,
            unary=base.unary.to(unary.dtype) + unary,
            tables=tuple(groups),
            constant=repeated.constant.to(unary.dtype),
        )

    def log_prob(self, x: Tensor, unary: Tensor, tables: Sequence[Tensor | None] = ()) -> Tensor:
        """The log-likelihood of an assignment of each sample, (B,); ``-inf`` if it is infeasible."""
        models = self.models(unary, tables)
        log_z: Tensor = log_partition(models, self.method, **self.options).value
        return models.score(x) - log_z

    def pseudo_log_likelihood(
        self, x: Tensor, unary: Tensor, tables: Sequence[Tensor | None] = (), *, keep: float = 1.0
    ) -> Tensor:
        r""":math:`\sum_i \log p(x_i | x_{\setminus i})`, (B,): one pass over the tables, whatever the width.

        With ``keep`` below 1 every conditional ignores a random part of its tables (the E-PLL of Defresne et al. 2023).
        Otherwise a constraint that the others imply has no gradient and is never learned.
        """
        scores = conditionals(self.models(unary, tables), x, keep=keep)
        return scores.log_softmax(2).gather(2, x[..., None]).squeeze(2).sum(1)

    def marginals(self, unary: Tensor, tables: Sequence[Tensor | None] = (), **options: Any) -> MarginalsBatch:
        """The probability of every state of every variable; see `fgnn.marginals`."""
        return marginals(self.models(unary, tables).detach(), self.method, **{**self.options, **options})

    @torch.no_grad()
    def map(
        self, unary: Tensor, tables: Sequence[Tensor | None] = (), method: str = "auto", **options: Any
    ) -> SolutionBatch:
        """The most probable assignment of each sample; see `fgnn.solve`."""
        return solve(self.models(unary, tables), method, **options)

    @torch.no_grad()
    def sample(self, count: int, unary: Tensor, tables: Sequence[Tensor | None] = (), *, seed: int = 0) -> Tensor:
        """Independent assignments of each sample, (count, B, N); the graph must be narrow enough for elimination."""
        drawn = sample(self.models(unary, tables), count, seed=seed)
        return torch.as_tensor(drawn)

    def template(self) -> GraphicalModel:
        """The template with the learned tables added: a model to write to a file."""
        zeros = torch.zeros_like(self._template.unary)
        return self.models(zeros.to(next(self.parameters(), zeros).device)).detach().model(0)

    def _on(self, like: Tensor) -> ModelBatch:
        if self._template.device != like.device:
            self._template = self._template.to(like.device)
        return self._template

    def _check_tables(self, group: int, scores: Tensor, count: int, shape: torch.Size) -> None:
        allowed = [shape[1:], shape, torch.Size((count, *shape)), torch.Size((1, *shape))]
        if scores.shape not in allowed:
            raise ValueError(
                f"Expected scores of table group {group} as {' or '.join(str(tuple(s)) for s in allowed[:3])} "
                f"(got {tuple(scores.shape)})"
            )

    def extra_repr(self) -> str:
        return f"{self._template.num_variables} variables, learn={self.learn}, method={self.method}"


def log_prob_each(samples: Sequence[tuple[CRF, Tensor, Tensor]]) -> Tensor:
    """The log-likelihoods (S,) of samples on graphs of different structure: (CRF, x (N,), unary (N, K)) each.

    Samples on one CRF, see `CRF.on`, are evaluated together.
    """
    by_graph: dict[int, list[int]] = {}
    for s, (crf, _, _) in enumerate(samples):
        by_graph.setdefault(id(crf), []).append(s)
    parts = []
    for members in by_graph.values():
        x, unary = torch.stack([samples[s][1] for s in members]), torch.stack([samples[s][2] for s in members])
        parts.append(samples[members[0]][0].log_prob(x, unary))
    order = torch.tensor([s for members in by_graph.values() for s in members], device="cpu").argsort()
    return torch.cat(parts)[order.to(parts[0].device)] if parts else torch.zeros(0)
