"""The corollary: max-product belief propagation as a factor graph neural network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup
from fgnn.nn import FactorToVariable, FGNNLayer, VariableToFactor
from fgnn.pgm import GraphicalModel, ModelBatch
from fgnn.theory.kinds import sort_factors
from fgnn.theory.layout import FactorKind, VariableLayout
from fgnn.theory.parts import linear_of, message_of, table_of
from fgnn.theory.updates import Variant, towards_factor, towards_variable


class MaxProductNetwork(nn.Module):
    r"""k iterations of max-product, eq. (max_product), as k FGNN layers and a linear layer.

    Each `FGNNLayer` (sequential schedule, max aggregation) is one iteration of eq. (decomposed):

    .. math::
        b_{c \to i}(z_c) &= \sum_{i' \in s(c),\, i' \ne i} \max_{x_{i'}} [\theta_{i'c}(x_{i'}, z_c) + b_{i'}(x_{i'})] \\
        b_i(x_i) &= \theta_i(x_i) + \sum_{c \ni i} \max_{z_c} [\theta_{ic}(x_i, z_c) + b_{c \to i}(z_c)]

    - VF: M takes the maximum of the belief over the sides of the boxes (Prop. 3) and Q writes the result into the
      factor's slot for the variable (Prop. 4);
    - FV: M sums the slots of the other variables and takes the maximum over z (Prop. 3); Q writes the message into
      the variable's slot for the factor (Prop. 4). The sum over these slots is left to the layer that reads them:
      the next M, or ``readout``, the linear layer at the end.

    The weights depend on the scopes and boxes alone; unaries and values are features. All layers are one module
    applied k times, for every iteration is the same map.

    Nothing is rounded away: numbers are split into positive and negative parts, which makes the features non-negative
    without a shift, and -inf is a separate 0/1 entry instead of a large number, so beliefs are exact to rounding and
    -inf exactly where max-product's are.
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
        self.edges = {kind.name: kind.edge_index for kind in self.kinds}
        self._mould = ModelBatch.stack([model])
        self.layer = _layer(self.kinds, self.layout, variant, normalise)
        self.readout = _readout(self.layout)

    @property
    def layers(self) -> list[FGNNLayer]:
        """The k FGNN layers, in order; they share their weights."""
        return [self.layer] * self.iterations

    def features(self, models: GraphicalModel | ModelBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The features before the first layer: unaries and values of the terms, all messages 0.

        Args:
            models: Models with the scopes and budgets of the one the network was made for, and tables with its boxes;
                on the device where the network is.

        Returns:
            f (B, N, width) and g by group (B, C, width).
        """
        batch = models if isinstance(models, ModelBatch) else ModelBatch.stack([models])
        batch = batch.to(dtype=torch.float64)
        self._check(batch)
        layout = self.layout
        theta = batch.unary.masked_fill(~batch.state_mask, 0.0)  # padding is never read; 0 keeps it finite
        banned = theta == -torch.inf
        if bool(banned.any()) and not layout.bans:
            raise ValueError("Expected finite unaries, as in the model the network was made for (got -inf)")
        f = theta.new_zeros(*theta.shape[:2], layout.width)
        f[..., : layout.states] = theta.masked_fill(banned, 0.0)
        if layout.bans:
            f[..., layout.states : 2 * layout.states] = banned.to(f.dtype)
        gs: dict[str, Tensor] = {}
        for kind in self.kinds:
            g = f.new_zeros(len(batch), len(kind.scopes), kind.width(layout))
            if kind.source is not None:
                tables = batch.tables[kind.source].values[:, kind.rows.to(batch.device)].flatten(2)
                values = kind.values(tables)
                if not bool(values.isfinite().all()) or not kind.covers(tables, values):
                    raise ValueError(
                        f"Expected tables with the boxes of those the network was made for (got others in {kind.name})"
                    )
                g[..., : len(kind.terms)] = values
            gs[kind.name] = g
        return f, gs

    def forward(self, f: Tensor, gs: dict[str, Tensor]) -> Tensor:
        """The beliefs after every iteration, (k, B, N, K), -inf where forbidden; states a variable lacks hold 0."""
        return torch.stack([self._read(after) for after in self._run(f, gs)])

    def _run(self, f: Tensor, gs: dict[str, Tensor]) -> list[Tensor]:
        """The variables' features after every layer."""
        if self.graph.device != f.device:
            self.graph = self.graph.to(f.device)
            self.edges = {name: types.to(f.device) for name, types in self.edges.items()}
        history = []
        for layer in self.layers:
            f, gs = layer(self.graph, f, gs, self.edges)
            history.append(f)
        return history

    def _check(self, batch: ModelBatch) -> None:
        mine = self._mould
        if len(batch.tables) != len(mine.tables) or len(batch.budgets) != len(mine.budgets):
            raise ValueError(f"Expected models with the factors of the one the network was made for (got {batch!r})")
        pairs = [("cardinalities", batch.cardinalities, mine.cardinalities)]
        pairs += [("scopes", t.scopes, m.scopes) for t, m in zip(batch.tables, mine.tables, strict=True)]
        for u, m in zip(batch.budgets, mine.budgets, strict=True):
            pairs += [("scopes", u.scopes, m.scopes)]
            pairs += [("budgets", u.at_least, m.at_least), ("budgets", u.at_most, m.at_most)]
        for what, given, wanted in pairs:
            if given.shape[1:] != wanted.shape[1:] or not bool((given == wanted.to(given.device)).all()):
                raise ValueError(f"Expected models with the {what} of the one the network was made for (got others)")

    def _read(self, f: Tensor) -> Tensor:
        out: Tensor = self.readout(f)
        if not self.layout.bans:
            return out
        k = self.layout.states
        return out[..., :k].masked_fill(out[..., k:] > 0, -torch.inf)

    @torch.no_grad()
    def beliefs(self, models: GraphicalModel | ModelBatch | None = None) -> list[list[Tensor]]:
        """The beliefs b_i: entry [t][i] after iteration t + 1, shape (cardinality of i,).

        Args:
            models: By default the model the network was made for; with a `ModelBatch` of its structure, the entries
                have shape (B, cardinality of i).
        """
        given = self.model if models is None else models
        history = self.forward(*self.features(given))  # shape: (k, B, N, K)
        if not isinstance(given, ModelBatch):
            history = history.squeeze(1)
        cards = self.model.cardinalities.tolist()
        return [[after[..., i, :k] for i, k in enumerate(cards)] for after in history]

    def assignments(self, models: GraphicalModel | ModelBatch | None = None) -> list[Tensor]:
        """Every variable's best state: entry [t] after iteration t + 1, shape (N,), or (B, N) for a `ModelBatch`.

        Loopy beliefs can tie exactly, and rounding would choose; states within 1e-9 of the best (relative to the
        belief where it is large) count as equal, and the first is taken.
        """
        return [torch.stack([_first_best(b) for b in after], -1) for after in self.beliefs(models)]

    @torch.no_grad()
    def messages(self) -> list[dict[tuple[int, int], Tensor]]:
        """The messages m_{c→i}: entry [t][c, i] after iteration t + 1, shape (cardinality of i,).

        They are read from the slots of the variables' features. Factor c has the scope ``net.scopes[c]``.
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
        return value.masked_fill(parts[:, 2] > 0, -torch.inf) if self.layout.bans else value

    @property
    def scopes(self) -> list[tuple[int, ...]]:
        """The scopes of all factors, kind by kind; a constant factor of a variable without any comes last."""
        return [tuple(scope) for kind in self.kinds for scope in kind.scopes.tolist()]

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, variant={self.variant}, normalise={self.normalise}"


def max_product_network(
    model: GraphicalModel,
    iterations: int,
    variant: Variant = "standard",
    normalise: bool = False,
    merge: bool = True,
) -> MaxProductNetwork:
    """The FGNN that runs max-product on a model: flooding from messages 0, undamped.

    Args:
        model: Any model; budgets are decomposed without their tables.
        iterations: k, the number of FGNN layers.
        variant: ``paper`` sums full beliefs, eq. (max_product) as printed; ``standard`` leaves the receiving factor's
            own message out, as max-product is usually meant.
        normalise: Whether the largest entry of each message is subtracted from it; without, beliefs grow with k.
        merge: Whether equal values of a table share terms; without, one term per finite configuration, and the same
            weights serve all tables that forbid the same configurations.

    Example:
        >>> m = GraphicalModel([2, 2])
        >>> m.add_unary(0, [0.0, 0.5])
        >>> m.add_table((0, 1), [[0.0, 0.1], [0.2, 1.0]])
        >>> net = max_product_network(m, iterations=2, variant="paper")
        >>> net.beliefs()[-1][1]
        tensor([1.7000, 2.5000], dtype=torch.float64)
    """
    return MaxProductNetwork(model, iterations, variant, normalise, merge)


def _first_best(belief: Tensor) -> Tensor:
    best = belief.amax(-1, keepdim=True)
    near = belief >= best - 1e-9 * best.abs().clamp(1.0, torch.finfo(belief.dtype).max)
    return near.to(torch.uint8).argmax(-1)


def _layer(kinds: list[FactorKind], layout: VariableLayout, variant: Variant, normalise: bool) -> FGNNLayer:
    vf, fv = {}, {}
    for kind in kinds:
        width = kind.width(layout)
        to_factor = towards_factor(kind, layout, variant)
        to_variable = towards_variable(kind, layout, normalise)
        vf[kind.name] = VariableToFactor(
            message_of(to_factor.layers, width, final_relu=True), table_of(to_factor.matrices)
        )
        fv[kind.name] = (message_of(to_variable.layers, width, final_relu=True), table_of(to_variable.matrices))
    return FGNNLayer.from_parts(vf, FactorToVariable(fv), schedule="sequential")


def _readout(layout: VariableLayout) -> nn.Linear:
    """b_i(x) = θ_i(x) + Σ of the slots, and in a second half how many of the summands are -inf."""
    k = layout.states
    weight = torch.zeros(k * (2 if layout.bans else 1), layout.width, dtype=torch.float64)
    for x in range(k):
        weight[x, x] = 1.0
        if layout.bans:
            weight[k + x, k + x] = 1.0
        for slot in range(layout.slots):
            at = layout.message(slot, x)
            weight[x, at], weight[x, at + 1] = 1.0, -1.0
            if layout.bans:
                weight[k + x, at + 2] = 1.0
    return linear_of(weight)
