"""The blocks of the paper's networks besides the FGNN layer: FC, MLP, Res, DR and GlobalPooling.

Each maps (graph, f, gs, edges) to (f, gs). Groups that no later layer reads are left out of ``gs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, tracing
from fgnn.nn.aggregate import Aggregation
from fgnn.nn.backends.fork import fork
from fgnn.nn.backends.linear import compiled, linear, linears
from fgnn.nn.backends.steps import finish, recording, start, within_operator
from fgnn.nn.backends.torch.reduce import reduce_edges
from fgnn.nn.backends.torch.traced import reduce_segments
from fgnn.nn.edge_features import EdgeFeatures
from fgnn.nn.inputs import check_sizes
from fgnn.nn.layer import FGNNLayer
from fgnn.nn.norm import NodeBatchNorm, Norm, batch_norms, make_norm
from fgnn.nn.plain_modules import is_observed, is_plain, linear_weights

Factors = Mapping[str, Tensor]  # features of the factors by group
Edges = Mapping[str, EdgeFeatures] | None
Features = tuple[Tensor, dict[str, Tensor]]


class _Dense(nn.Sequential):
    """A linear layer, then normalisation and ReLU if asked for."""

    def __init__(self, width_in: int, out: int, norm: Norm, activation: str | None) -> None:
        parts: list[nn.Module] = [nn.Linear(width_in, out)]
        after = make_norm(norm, out)
        if after is not None:
            parts.append(after)
        if activation == "relu":
            parts.append(nn.ReLU())
        super().__init__(*parts)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Add ``residual`` to the result, if given.  # shape: (..., width_in) to (..., out)"""
        if self.fused_norm(x):
            return _normalised([self], [x], [residual])[0]
        first, *after = self
        weights = linear_weights(first)
        if weights is None:
            x = first(x)
        elif not after or is_plain(after[0], nn.ReLU):
            x, after = linear(x, *weights, relu=bool(after)), after[1:]
        else:
            x = linear(x, *weights)
        for part in after:
            x = part(x)
        return x if residual is None else residual + x

    def fused_norm(self, x: Tensor) -> bool:
        """Whether the norm after the linear layer also adds its bias, applies the ReLU and adds a residual to x."""
        first, *after = self._modules.values()
        if linear_weights(first) is None or not (after and isinstance(after[0], NodeBatchNorm)):
            return False
        return after[0].fused(x) and _at_most_relu(after[1:])

    @property
    def weights(self) -> tuple[Tensor, Tensor] | None:
        """Θ and β of the linear layer; None if more than a ReLU follows, or a module must be called."""
        first, *after = self._modules.values()
        found = linear_weights(first) if is_plain(self, _Dense) and _at_most_relu(after) else None
        return None if found is None or found[1] is None else found


def _at_most_relu(modules: Sequence[nn.Module | None]) -> bool:
    count = len(modules)  # Dynamo of torch 2.11 does not trace `not` of a tuple
    return count == 0 or (count == 1 and is_plain(modules[0], nn.ReLU))  # type: ignore[arg-type]


def _normalised(layers: Sequence[_Dense], xs: Sequence[Tensor], residuals: Sequence[Tensor | None]) -> list[Tensor]:
    """Layers with fused norms on several kinds of nodes, in the same launches."""
    found: Any = [linear_weights(layer[0]) for layer in layers]
    thetas, betas = zip(*found, strict=True)
    norms: Any = [layer[1] for layer in layers]
    return batch_norms(norms, linears(xs, thetas, None, relu=False), betas, residuals, relu=len(layers[0]) > 2)


def _sharing_norms(layers: Sequence[nn.Module], xs: Sequence[Tensor]) -> list[_Dense]:
    """These layers if all are plain, of the same parts, and have fused norms; else none."""
    plain = [layer for layer in layers if isinstance(layer, _Dense) and is_plain(layer, _Dense)]
    if len(layers) < 2 or len(plain) < len(layers) or len({len(layer._modules) for layer in plain}) > 1:
        return []
    return plain if all(layer.fused_norm(x) for layer, x in zip(plain, xs, strict=True)) else []


def _add(layer: nn.Module, x: Tensor, residual: Tensor | None) -> Tensor:
    """``residual``, if given, plus the result of a layer, which adds it itself if nothing else sees that."""
    if is_plain(layer, _Dense):
        y: Tensor = layer(x, residual)
        return y
    y = layer(x)
    return y if residual is None else residual + y


class FC(nn.Module):
    r"""A fully connected layer on every node, :math:`x \mapsto \mathrm{ReLU}(W_k x + b_k)`, k the type of the node.

    Variables and each group of factors have their own weights.

    Args:
        variable_in: Length of f_i.
        factor_in: Length of g_c by group; a group that is missing or has no features (0) is dropped.
        out: The new length of all of them.
        norm: "batch", "layer", "rms" or None.
        activation: "relu" or None.
    """

    def __init__(
        self,
        variable_in: int,
        factor_in: Mapping[str, int],
        out: int,
        *,
        norm: Norm = None,
        activation: str | None = "relu",
    ) -> None:
        super().__init__()
        if activation not in (None, "relu"):
            raise ValueError(f"Expected activation 'relu' or None (got {activation!r})")
        check_sizes(variable_in, factor_in, {}, out=out)
        if not variable_in:
            raise ValueError("Expected variable_in as an integer of at least 1 (got 0)")
        self.factor_in, self.variable_in = dict(factor_in), variable_in
        self.variable = _Dense(variable_in, out, norm, activation)
        self.factor = nn.ModuleDict(
            {name: _Dense(width, out, norm, activation) for name, width in factor_in.items() if width}
        )

    def _weights(self, layers: Sequence[nn.Module]) -> list[tuple[Tensor, Tensor]] | None:
        """Θ and β of these layers if one operation serves them all."""
        found, length = [], len(layers[0]._modules)
        for one in layers:
            weights = one.weights if isinstance(one, _Dense) and len(one._modules) == length else None
            if weights is None:
                return None
            found.append(weights)
        return found

    def in_steps(self) -> bool:
        """Whether the layers are linear, all with ReLU or all without, and none of their modules must be called.

        Not traced, see :meth:`FGNNLayer.in_steps`.
        """
        return self._weights([self.variable, *self.factor.values()]) is not None

    in_steps._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def forward(
        self, graph: FactorGraph, f: Tensor, gs: Factors, edges: Edges = None, residual: Features | None = None
    ) -> Features:
        """New features of all nodes, plus ``residual`` if given."""
        to_f, to_gs = residual if residual is not None else (None, {})
        names = [name for name in gs if name in self.factor]
        if f.shape[-1] != self.variable_in:
            raise ValueError(f"Expected f of length {self.variable_in} (got {tuple(f.shape)})")
        for name in names:
            if gs[name].shape[-1] != self.factor_in[name]:
                got = tuple(gs[name].shape)
                raise ValueError(f"Expected gs[{name!r}] of length {self.factor_in[name]} (got {got})")
        nodes = [self.variable, *(self.factor[name] for name in names)]
        weights = self._weights(nodes)
        if weights is not None:
            after = None if to_f is None else [to_f, *(to_gs[name] for name in names)]
            thetas, betas = zip(*weights, strict=True)
            new_f, *new = linears(
                [f, *(gs[name] for name in names)], thetas, betas, relu=len(self.variable) > 1, residuals=after
            )
            return new_f, dict(zip(names, new, strict=True))
        given = [f, *(gs[name] for name in names)]
        if normed := _sharing_norms(nodes, given):
            new_f, *new = _normalised(normed, given, [to_f, *(to_gs.get(name) for name in names)])
            return new_f, dict(zip(names, new, strict=True))
        new_f = _add(self.variable, f, to_f)
        return new_f, {name: _add(self.factor[name], gs[name], to_gs.get(name)) for name in names}


class MLP(nn.Module):
    """A sequence of :class:`FC`; with a single width it is an FC."""

    def __init__(
        self,
        variable_in: int,
        factor_in: Mapping[str, int],
        widths: Sequence[int],
        *,
        norm: Norm = None,
        activation: str | None = "relu",
    ) -> None:
        super().__init__()
        if not widths:
            raise ValueError("Expected at least one width (got none)")
        self.layers = nn.ModuleList()
        for out in widths:
            self.layers.append(FC(variable_in, factor_in, out, norm=norm, activation=activation))
            variable_in, factor_in = out, dict.fromkeys(factor_in, out)

    def forward(self, graph: FactorGraph, f: Tensor, gs: Factors, edges: Edges = None) -> Features:
        """New features of all nodes."""
        return run_layers(self.layers, graph, f, gs, edges)


class Res(nn.Module):
    """A residual connection, x + body(x), on variables and on every group the body returns."""

    def __init__(self, body: Sequence[nn.Module]) -> None:
        super().__init__()
        self.body = nn.ModuleList(body)

    def in_steps(self) -> bool:
        """Whether compiled code takes all of it as steps; not traced either."""
        return type(self.body[-1]) is FC and all(in_steps(one) for one in self.body)

    in_steps._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def forward(self, graph: FactorGraph, f: Tensor, gs: Factors, edges: Edges = None) -> Features:
        """New features, of the same length as the old."""
        *inner, last = self.body
        (first_f, *first_gs), (f, *kept) = fork([f, *gs.values()])
        first, gs = dict(zip(gs, first_gs, strict=True)), dict(zip(gs, kept, strict=True))
        new_f, new_gs = run_layers(inner, graph, first_f, first, edges)
        if is_plain(last, FC):  # which adds the residual itself, where it can in the same pass
            features: Features = last(graph, new_f, new_gs, edges, (f, gs))
            return features
        new_f, new_gs = last(graph, new_f, new_gs, edges)
        return f + new_f, {name: gs[name] + g for name, g in new_gs.items()}


class DR(nn.Module):
    """Dropout with rate p on variables and factors."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"Expected a dropout rate in [0, 1) (got {p})")
        self.dropout = nn.Dropout(p)

    def forward(self, graph: FactorGraph, f: Tensor, gs: Factors, edges: Edges = None) -> Features:
        """The same features, with random entries zeroed in training."""
        return self.dropout(f), {name: self.dropout(g) for name, g in gs.items()}


class GlobalPooling(nn.Module):
    r"""PointNet's: :math:`f_i \mapsto [f_i, \max_j f_j]`, over the variables j of the same graph.

    The length of f_i doubles. Factors are unchanged: the next layer's M passes the global features on to them.
    """

    def forward(self, graph: FactorGraph, f: Tensor, gs: Factors, edges: Edges = None) -> Features:
        """Variables twice as long, factors unchanged."""
        size = graph.num_variables if graph.variable_ptr is None else graph.graph_size
        if f.numel() == 0:
            return torch.cat([f, f], dim=-1), dict(gs)
        if size:
            rows = f.view(*f.shape[:-2], -1, size, f.shape[-1])
            # max with its index, not amax: on a tie the gradient goes to the first maximum.
            pooled = rows.max(-2, keepdim=True).values.expand_as(rows).flatten(-3, -2)
        elif tracing():
            index = graph.batch_index()
            pooled = reduce_segments(f, index, graph.num_graphs, Aggregation("max")).index_select(-2, index)
        else:
            members = graph.members()
            largest, _ = reduce_edges(f.movedim(-2, 0), members, "factor", Aggregation("max"), arg=True)
            pooled = largest.index_select(0, members.factor).movedim(0, -2)
        return torch.cat([f, pooled], dim=-1), dict(gs)


def run_layers(
    layers: Sequence[nn.Module] | nn.ModuleList, graph: FactorGraph, f: Tensor, gs: Factors, edges: Edges
) -> Features:
    """Layers one after another."""
    features = dict(gs)
    if compiled() and not recording():
        return _run_compiled(layers, graph, f, features, edges)
    for layer in layers:
        f, features = layer(graph, f, features, edges)
    return f, features


def _run_compiled(
    layers: Sequence[nn.Module] | nn.ModuleList, graph: FactorGraph, f: Tensor, gs: dict[str, Tensor], edges: Edges
) -> Features:
    """The same in compiled code, where consecutive layers that consist of steps are one operator."""
    # Plain operations serve features of which some have no axis for samples.
    alike = isinstance(f, Tensor) and all(isinstance(g, Tensor) and g.dim() == f.dim() for g in gs.values())
    alike = alike and not within_operator()
    for layer in layers:
        steps = alike and in_steps(layer)
        if steps and not recording():
            start()
        elif recording() and not steps:
            f, *rest = finish([f, *gs.values()])
            gs = dict(zip(gs, rest, strict=True))
        f, gs = layer(graph, f, gs, edges)
    if recording():
        f, *rest = finish([f, *gs.values()])
        gs = dict(zip(gs, rest, strict=True))
    return f, gs


def in_steps(layer: nn.Module) -> bool:
    """Whether a layer in compiled code consists of steps alone: nothing else reads what is between them."""
    if is_observed(layer):
        return False
    return type(layer) in (FGNNLayer, FC, Res) and layer.in_steps()  # type: ignore[operator]
