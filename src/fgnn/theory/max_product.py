"""The corollary: max-product belief propagation as a factor graph neural network."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup
from fgnn.nn import FactorToVariable, FGNNLayer, VariableToFactor
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.theory.decomposition_network import first_layer
from fgnn.theory.kinds import Terms, sort_factors
from fgnn.theory.layout import EDGE, FORBIDDEN, LIMIT, FactorKind, VariableLayout
from fgnn.theory.parts import linear_of
from fgnn.theory.updates import Variant, check_network, towards_factor, towards_variable


class MaxProductNetwork(nn.Module):
    r"""k iterations of max-product, eq. (max_product), as k FGNN layers and a linear layer.

    Each `FGNNLayer` (sequential schedule, max aggregation) is one iteration of eq. (decomposed):

    .. math::
        b_{c \to i}(z_c) &= \sum_{i' \in s(c),\, i' \ne i} \max_{x_{i'}} [\theta_{i'c}(x_{i'}, z_c) + b_{i'}(x_{i'})] \\
        b_i(x_i) &= \theta_i(x_i) + \sum_{c \ni i} \max_{z_c} [\theta_{ic}(x_i, z_c) + b_{c \to i}(z_c)]

    - VF: M takes the maximum of the belief over the sides of the boxes (Prop. 3), and Q writes it into the factor's
      slot for the variable (Prop. 4).
    - FV: M sums the slots of the other variables and takes the maximum over z (Prop. 3); Q writes the message into
      the variable's slot for the factor (Prop. 4). The layer that reads these slots sums them: the next M, or the
      final linear layer ``readout``.

    The weights depend only on the scopes and boxes; unaries and the numbers of the terms are features. Every iteration
    is the same map, so all k layers are one module.

    Numbers are split into positive and negative parts, which makes the features non-negative without a shift. Maxima
    select one of their arguments and sums are those of max-product, so beliefs differ from max-product's only by the
    order of the sums. -inf is stored as -1e100, which no finite number is ever added to and kept; a belief below
    -1e95 means -inf. Numbers of 1e90 or more are refused.

    The schedule is flooding, with messages 0 at the start and no damping. ``max_product_network`` is the same class.

    Args:
        model: Any model; budgets are decomposed without expanding their tables.
        iterations: k, the number of FGNN layers.
        variant: ``paper`` sums full beliefs, eq. (max_product) as printed; ``standard`` is textbook max-product, which
            excludes the receiving factor's own message.
        normalise: Whether to subtract the largest entry of each message; otherwise beliefs grow with k.
        terms: How factors are decomposed. ``few``: the terms that need the fewest comparisons. ``single``: one term per
            finite configuration, so all tables that forbid the same configurations share weights. ``tables``: the
            network decomposes by itself, with Prop. 2's layer in front; its 1 + k layers read the potentials and serve
            all models with the same scopes. Budgets are then tables too.

    Example:
        >>> m = GraphicalModel([2, 2])
        >>> m.add_unary(0, [0.0, 0.5])
        >>> m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        >>> net = max_product_network(m, iterations=2, variant="paper")
        >>> net.beliefs()[-1][1]
        tensor([1.7000, 2.5000], dtype=torch.float64)
    """

    def __init__(
        self,
        model: GraphicalModel,
        iterations: int,
        variant: Variant = "standard",
        normalise: bool = False,
        terms: Terms = "few",
    ) -> None:
        super().__init__()
        if terms not in get_args(Terms):
            raise ValueError(f"Expected terms among {list(get_args(Terms))} (got {terms!r})")
        check_network(model, iterations, variant)
        self.iterations, self.variant, self.normalise = iterations, variant, normalise
        self.model = model
        model = model.expanded()
        self.kinds, self.layout = sort_factors(model, terms, separate=variant == "standard")
        self.graph = FactorGraph(model.num_variables, {kind.name: FactorGroup(kind.scopes) for kind in self.kinds})
        self.edges = {k.name: EdgeTypes(k.edge_index.reshape(-1), len(k.edge_types)) for k in self.kinds}
        self._template = ModelBatch.stack([model])
        self.decomposer = first_layer(self.kinds, self.layout) if terms == "tables" else None
        self.layer = _layer(self.kinds, self.layout, variant, normalise)
        self.readout = _readout(self.layout)

    @property
    def layers(self) -> list[FGNNLayer]:
        """All FGNN layers in order: Prop. 2's if there is one, then one per iteration, which share their weights."""
        return [*([] if self.decomposer is None else [self.decomposer]), *[self.layer] * self.iterations]

    def features(self, models: GraphicalModel | ModelBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The input features: unaries and numbers of the terms, with all messages 0; or the unaries and tables alone.

        Args:
            models: Models with the scopes, budgets and boxes of the network's model, on the network's device.

        Returns:
            f (B, N, width) and g by group (B, C, width).
        """
        batch = models if isinstance(models, ModelBatch) else ModelBatch.stack([models.expanded()])
        batch = batch.to(dtype=torch.float64)
        self._check(batch)
        theta = _stored(batch.unary.masked_fill(~batch.state_mask, 0.0))  # padding is never read; 0 keeps it finite
        raw = self.decomposer is not None
        f = theta if raw else nn.functional.pad(theta, (0, self.layout.width - theta.shape[-1]))
        gs: dict[str, Tensor] = {}
        for kind in self.kinds:
            shape = (len(batch), len(kind.scopes))
            if kind.source is not None:
                tables = batch.tables[kind.source].values[:, kind.rows.to(batch.device)]
                g = tables.flatten(2) if raw else kind.describe(tables)
            elif kind.fixed is not None:
                g = kind.fixed.to(f.device).expand(*shape, -1)
            else:
                g = f.new_zeros(*shape, kind.numbers)
            gs[kind.name] = _stored(g if raw else nn.functional.pad(g, (0, kind.width - g.shape[-1])))
        return f, gs

    def forward(self, f: Tensor, gs: dict[str, Tensor]) -> Tensor:
        """The beliefs after every iteration, (k, B, N, K): -inf if forbidden, 0 for states a variable lacks."""
        return torch.stack([self._read(after) for after in self._run(f, gs)])

    def _run(self, f: Tensor, gs: dict[str, Tensor]) -> list[Tensor]:
        """The variables' features after every layer."""
        if self.graph.device != f.device:
            self.graph = self.graph.to(f.device)
            self.edges = {name: EdgeTypes(t.index.to(f.device), t.num_types) for name, t in self.edges.items()}
        if self.decomposer is not None:
            f, gs = self.decomposer(self.graph, f, gs, self.edges)
        history = []
        for t in range(self.iterations):
            f, gs = self.layer(self.graph, f, gs, self.edges)
            messages = f.detach()[..., self.layout.states :]
            up, down = messages[..., ::2], messages[..., 1::2]
            largest = float(torch.maximum(up, down.masked_fill(down > FORBIDDEN / 2, 0.0)).max())
            if not largest < LIMIT:
                raise ValueError(
                    f"Expected messages below {LIMIT:g}, the range of the network: use normalise=True or fewer "
                    f"iterations (got {largest:.3g} after iteration {t + 1})"
                )
            history.append(f)
        return history

    def _check(self, batch: ModelBatch) -> None:
        template = self._template
        if len(batch.tables) != len(template.tables) or len(batch.budgets) != len(template.budgets):
            raise ValueError(f"Expected models with the factors of the network's model (got {batch!r})")
        pairs = [("cardinalities", batch.cardinalities, template.cardinalities)]
        pairs += [("scopes", t.scopes, m.scopes) for t, m in zip(batch.tables, template.tables, strict=True)]
        for u, m in zip(batch.budgets, template.budgets, strict=True):
            pairs += [("scopes", u.scopes, m.scopes)]
            pairs += [("budgets", u.at_least, m.at_least), ("budgets", u.at_most, m.at_most)]
        for what, values, expected in pairs:
            if values.shape[1:] != expected.shape[1:] or not bool((values == expected.to(values.device)).all()):
                raise ValueError(f"Expected models with the {what} of the network's model (got different ones)")

    def _read(self, f: Tensor) -> Tensor:
        """The linear layer, with numbers below -EDGE shown as -inf."""
        out: Tensor = self.readout(f)
        return out.masked_fill(out < -EDGE, -torch.inf)

    @torch.no_grad()
    def beliefs(self, models: GraphicalModel | ModelBatch | None = None) -> list[list[Tensor]]:
        """The beliefs b_i: entry [t][i] after iteration t + 1, shape (cardinality of i,).

        Args:
            models: The network's model by default; for a `ModelBatch` of its structure, the entries have shape
                (B, cardinality of i).
        """
        models = self.model if models is None else models
        history = self.forward(*self.features(models))  # shape: (k, B, N, K)
        if not isinstance(models, ModelBatch):
            history = history.squeeze(1)
        cards = self.model.cardinalities.tolist()
        return [[after[..., i, :k] for i, k in enumerate(cards)] for after in history]

    def assignments(self, models: GraphicalModel | ModelBatch | None = None) -> list[Tensor]:
        """The best state of each variable: entry [t] after iteration t + 1, shape (N,), or (B, N) for a `ModelBatch`.

        Loopy beliefs can tie exactly, and rounding would break the ties. States within 1e-9 of the best, absolute or
        relative, count as equal, and the first is chosen.
        """
        return [torch.stack([_first_best(b) for b in after], -1) for after in self.beliefs(models)]

    @torch.no_grad()
    def messages(self) -> list[dict[tuple[int, int], Tensor]]:
        """The messages m_{c→i}: entry [t][c, i] after iteration t + 1, shape (cardinality of i,).

        Factor c has the scope ``net.scopes[c]``.
        """
        history = self._run(*self.features(self.model))
        edges = [edge for kind in self.kinds for edge in zip(kind.scopes.tolist(), kind.slots.tolist(), strict=True)]
        return [
            {
                (c, i): self._message(f[0, i], slot, int(self.model.cardinalities[i]))
                for c, (scope, slots) in enumerate(edges)
                for i, slot in zip(scope, slots, strict=True)
            }
            for f in history
        ]

    def _message(self, feature: Tensor, slot: int, states: int) -> Tensor:
        at = self.layout.message(slot, 0)
        up, down = feature[at : at + 2 * states].reshape(states, 2).unbind(1)
        return (up - down).masked_fill(down > EDGE, -torch.inf)

    @property
    def scopes(self) -> list[tuple[int, ...]]:
        """The scopes of all factors, kind by kind; constant factors of isolated variables come last."""
        return [tuple(scope) for kind in self.kinds for scope in kind.scopes.tolist()]

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, variant={self.variant}, normalise={self.normalise}"


max_product_network = MaxProductNetwork


def _first_best(belief: Tensor) -> Tensor:
    best = belief.amax(-1, keepdim=True)
    near = belief >= best - 1e-9 * best.abs().clamp(1.0, torch.finfo(belief.dtype).max)
    return near.to(torch.uint8).argmax(-1)


def _layer(kinds: list[FactorKind], layout: VariableLayout, variant: Variant, normalise: bool) -> FGNNLayer:
    vf = {kind.name: VariableToFactor(*towards_factor(kind, layout, variant)) for kind in kinds}
    fv = {kind.name: towards_variable(kind, layout, normalise) for kind in kinds}
    return FGNNLayer.from_parts(vf, FactorToVariable(fv), schedule="sequential")


def _readout(layout: VariableLayout) -> nn.Linear:
    """b_i(x) = θ_i(x) + Σ_c m_{c→i}(x)."""
    weight = torch.zeros(layout.states, layout.width, dtype=torch.float64)
    for x in range(layout.states):
        weight[x, x] = 1.0
        for slot in range(layout.slots):
            at = layout.message(slot, x)
            weight[x, at], weight[x, at + 1] = 1.0, -1.0
    return linear_of(weight)


def _stored(theta: Tensor) -> Tensor:
    """Log-potentials with -inf as the network stores it."""
    finite = theta.masked_fill(theta == -torch.inf, 0.0)
    if theta.numel() and not bool(finite.abs().max() < LIMIT):
        raise ValueError(f"Expected log-potentials below {LIMIT:g} or -inf (got {float(finite.abs().max()):.3g})")
    return theta.masked_fill(theta == -torch.inf, -FORBIDDEN)
