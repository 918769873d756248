r"""The point network in its MPNN form: nodes :math:`[g_{h(i)}, f_i]`, a factor and its own point as one.

Each point has a factor of its own, so an FGNN layer is message passing among points, eq. (stack_mp_nn): the factor's
half of node i listens to its k nearest neighbours, the variable's half to the points that count i among theirs.
(Printed, both halves listen to the union, and gates close what one of them must not hear; two lists say the same and
cost half.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fgnn.graph import Incidence, Side
from fgnn.nn.aggregate import finish
from fgnn.nn.backends.choice import choose_backend
from fgnn.nn.blocks import DR, FC, GlobalPooling, Res
from fgnn.nn.direction import EdgeMessages, FactorToVariable, VariableToFactor
from fgnn.nn.edge_matrix import BasisMatrix
from fgnn.nn.functional import aggregate_messages
from fgnn.nn.layer import FGNNLayer
from fgnn.nn.network import Network

Pair = tuple[Tensor, Tensor | None]  # f (B P, d) and g (B P, d), None where no layer reads it any more


def run_mpnn(network: Network, edges: Incidence, f: Tensor, g: Tensor, t: Tensor, clouds: int) -> Tensor:
    """What a network of one group of factors, one for each variable in order, computes with the parallel schedule.

    Args:
        network: As `fgnn.nn.build` makes it.
        edges: From `cloud_edges`.
        f, g: (B P, d), features of points and of their factors.
        t: (E, 3), edge features in the order of the edges.
        clouds: B, all of P points.
    """
    pair: Pair = (f, g)
    for layer in network.layers:
        pair = _step(layer, edges, pair, t, clouds)
    return pair[0]


def _step(layer: nn.Module, edges: Incidence, pair: Pair, t: Tensor, clouds: int) -> Pair:
    f, g = pair
    if isinstance(layer, FGNNLayer):
        return _fgnn(layer, edges, f, g, t)
    if isinstance(layer, FC):
        own = _only(layer.factor.values())
        return layer.variable(f), None if own is None or g is None else own(g)
    if isinstance(layer, Res):
        new: Pair = pair
        for inner in layer.body:
            new = _step(inner, edges, new, t, clouds)
        return f + new[0], None if new[1] is None or g is None else g + new[1]
    if isinstance(layer, DR):
        return layer.dropout(f), None if g is None else layer.dropout(g)
    if isinstance(layer, GlobalPooling):
        rows = f.view(clouds, -1, f.shape[-1])
        # max with its index, not amax: on a tie the gradient goes to one point, as everywhere
        pooled = rows.max(1, keepdim=True).values.expand_as(rows)
        return torch.cat([rows, pooled], -1).view(f.shape[0], -1), g
    return pair


def _fgnn(layer: FGNNLayer, edges: Incidence, f: Tensor, g: Tensor | None, t: Tensor) -> Pair:
    assert layer.schedule == "parallel", "both halves of an MPNN layer read the old features"
    made = None
    half = _only(layer.variable_to_factor.values())
    if half is not None:
        assert isinstance(half, VariableToFactor)
        total = _messages(half.edge_messages, edges, f, g, t, "factor", half)
        made = half.output(total, None)
    to_variable = layer.factor_to_variable
    messages = _only(to_variable.edge_messages.values())
    assert isinstance(messages, EdgeMessages)
    new: Tensor = to_variable.output(_messages(messages, edges, f, g, t, "variable", to_variable), None)
    return new, None if layer.variables_only else made


def _messages(
    own: EdgeMessages,
    edges: Incidence,
    f: Tensor,
    g: Tensor | None,
    t: Tensor,
    towards: Side,
    half: VariableToFactor | FactorToVariable,
) -> Tensor:
    """One half's aggregate at every node, which all have edges."""
    message = own.message
    if len(message.tail) or not isinstance(own.matrix, BasisMatrix):
        total = own(edges, f, g, t, towards, half.aggregation)
    else:
        a, b = message.parts(g, f, edges.num_factors, edges.num_variables)
        total = aggregate_messages(
            a, b, edges, _coefficients(own.matrix, t, half), own.matrix.weight,
            towards=towards, activation=message.first_activation, aggregation=half.aggregation,
        )  # fmt: skip
    degree = edges.degree(towards) if half.aggregation.kind == "mean" else None
    return finish(total, degree, None, half.aggregation)


def _coefficients(matrix: BasisMatrix, t: Tensor, half: VariableToFactor | FactorToVariable) -> Tensor:
    """φ(t), by one kernel where there is one.  # shape: (E, T)"""
    chosen = choose_backend(device=t.device, dtype=t.dtype, aggregation=half.aggregation)
    if chosen == "triton" and not torch.compiler.is_compiling():
        from fgnn.nn.backends.triton.edge_mlp import edge_mlp, fits

        if fits(matrix.net, t):
            return edge_mlp(matrix.net, t)
    return matrix.coefficients(t)


def _only(found: Iterable[nn.Module]) -> nn.Module | None:
    """The one entry there may be, since there is one group."""
    return next(iter(found), None)
