"""The corollary: max-product belief propagation as a factor graph neural network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.graph import EdgeTypes, FactorGraph, FactorGroup
from fgnn.nn import FactorToVariable, FGNNLayer, VariableToFactor
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.theory.kinds import sort_factors
from fgnn.theory.layout import FactorKind, VariableLayout
from fgnn.theory.parts import linear_of
from fgnn.theory.updates import Variant, towards_factor, towards_variable


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

    The weights depend only on the scopes and boxes; unaries and values are features. Every iteration is the same map,
    so all k layers are one module.

    Numbers are split into positive and negative parts, which makes the features non-negative without a shift, and
    -inf is a separate entry instead of a large number. Beliefs are therefore exact up to rounding, and -inf exactly
    if max-product's are.

    The schedule is flooding, with messages 0 at the start and no damping. ``max_product_network`` is the same class.

    Args:
        model: Any model; budgets are decomposed without expanding their tables.
        iterations: k, the number of FGNN layers.
        variant: ``paper`` sums full beliefs, eq. (max_product) as printed; ``standard`` is textbook max-product, which
            excludes the receiving factor's own message.
        normalise: Whether to subtract the largest entry of each message; otherwise beliefs grow with k.
        merge: Whether equal values of a table share terms; otherwise there is one term per finite configuration, and
            all tables that forbid the same configurations share weights.

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
        merge: bool = True,
    ) -> None:
        super().__init__()
        if variant not in ("paper", "standard"):
            raise ValueError(f"Expected variant paper or standard (got {variant!r})")
        if iterations < 1:
            raise ValueError(f"Expected at least one iteration (got {iterations})")
        if not model.num_variables:
            raise ValueError("Expected a model with at least one variable (got none)")
        self.iterations, self.variant, self.normalise = iterations, variant, normalise
        self.model = model
        self.kinds, self.layout = sort_factors(model, merge=merge)
        self.graph = FactorGraph(model.num_variables, {kind.name: FactorGroup(kind.scopes) for kind in self.kinds})
        self.edges = {k.name: EdgeTypes(k.edge_index.reshape(-1), len(k.edge_types)) for k in self.kinds}
        self._template = ModelBatch.stack([model])
        self.layer = _layer(self.kinds, self.layout, variant, normalise)
        self.readout = _readout(self.layout)

    @property
    def layers(self) -> list[FGNNLayer]:
        """The k FGNN layers, in order; they share their weights."""
        return [self.layer] * self.iterations

    def features(self, models: GraphicalModel | ModelBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The input features: unaries and values of the terms, with all messages 0.

        Args:
            models: Models with the scopes, budgets and boxes of the network's model, on the network's device.

        Returns:
            f (B, N, width) and g by group (B, C, width).
        """
        batch = models if isinstance(models, ModelBatch) else ModelBatch.stack([models])
        batch = batch.to(dtype=torch.float64)
        self._check(batch)
        layout = self.layout
        theta = batch.unary.masked_fill(~batch.state_mask, 0.0)  # padding is never read; 0 keeps it finite
        forbidden = theta == -torch.inf
        if bool(forbidden.any()) and not layout.forbids:
            raise ValueError("Expected finite unaries, as in the network's model (got -inf)")
        f = theta.new_zeros(*theta.shape[:2], layout.width)
        f[..., : layout.states] = theta.masked_fill(forbidden, 0.0)
        if layout.forbids:
            f[..., layout.states : 2 * layout.states] = forbidden.to(f.dtype)
        gs: dict[str, Tensor] = {}
        for kind in self.kinds:
            g = f.new_zeros(len(batch), len(kind.scopes), kind.width(layout))
            if kind.source is not None:
                tables = batch.tables[kind.source].values[:, kind.rows.to(batch.device)].flatten(2)
                values = kind.values(tables)
                if not bool(values.isfinite().all()) or not kind.covers(tables, values):
                    raise ValueError(f"Expected tables with the network's boxes (got others in {kind.name})")
                g[..., : len(kind.terms)] = values
            gs[kind.name] = g
        return f, gs

    def forward(self, f: Tensor, gs: dict[str, Tensor]) -> Tensor:
        """The beliefs after every iteration, (k, B, N, K): -inf if forbidden, 0 for states a variable lacks."""
        return torch.stack([self._read(after) for after in self._run(f, gs)])

    def _run(self, f: Tensor, gs: dict[str, Tensor]) -> list[Tensor]:
        """The variables' features after every layer."""
        if self.graph.device != f.device:
            self.graph = self.graph.to(f.device)
            self.edges = {name: EdgeTypes(t.index.to(f.device), t.num_types) for name, t in self.edges.items()}
        history = []
        for layer in self.layers:
            f, gs = layer(self.graph, f, gs, self.edges)
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
                raise ValueError(f"Expected models with the {what} of the network's model (got others)")

    def _read(self, f: Tensor) -> Tensor:
        out: Tensor = self.readout(f)
        if not self.layout.forbids:
            return out
        k = self.layout.states
        return out[..., :k].masked_fill(out[..., k:] > 0, -torch.inf)

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
        parts = feature[at : at + states * self.layout.parts].reshape(states, -1)
        value = parts[:, 0] - parts[:, 1]
        return value.masked_fill(parts[:, 2] > 0, -torch.inf) if self.layout.forbids else value

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
    """b_i(x) = θ_i(x) + Σ_c m_{c→i}(x), followed by the number of summands that are -inf."""
    k = layout.states
    weight = torch.zeros(layout.unaries, layout.width, dtype=torch.float64)
    for x in range(k):
        weight[x, x] = 1.0
        if layout.forbids:
            weight[k + x, k + x] = 1.0
        for slot in range(layout.slots):
            at = layout.message(slot, x)
            weight[x, at], weight[x, at + 1] = 1.0, -1.0
            if layout.forbids:
                weight[k + x, at + 2] = 1.0
    return linear_of(weight)
