"""The perfect-matching transformation: an FGNN layer as an MPNN layer on super-nodes, eq. (stack_mp_nn)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup, Incidence, Matching
from fgnn.nn import EdgeMatrix, EdgeMessages, FGNNLayer, MPNNLayer, TableMatrix, VariableToFactor
from fgnn.nn.edge_features import EdgeFeatures, edge_types, flatten_edges
from fgnn.nn.half_layer import Output
from fgnn.theory.stacked import StackedMatrix, stack_messages


class MatchedMPNN(MPNNLayer):
    r"""An `MPNNLayer` on the super-nodes :math:`[g_{h(i)}, f_i]` that is equivalent to an FGNN layer.

    Each super-node i receives messages from :math:`\mathcal{N}(i) = \{i' : i' \in s(h(i)) \lor i \in s(h(i'))\}`. Its
    factor needs :math:`\mathcal{M}([g_{h(i)}, f_{i'}]|\Theta_{VF})` and the edge :math:`t_{h(i)i'}`; its variable needs
    :math:`\mathcal{M}([g_{h(i')}, f_i]|\Theta_{FV})` and the edge :math:`t_{h(i')i}`. (The paper prints
    :math:`t_{h(i')i'}` and the features of i' alone in both blocks.)

    Call it like any `MPNNLayer`, with ``neighbours`` and the results of `stack` and `edge_features`, or use `run`.
    """

    neighbours: FactorGroup
    matching: Matching
    group: str
    _incidence: Incidence
    _edge_index: Tensor  # shape: (2, E'), the factor graph's edge of each block, -1 if missing
    _split: int

    def stack(self, f: Tensor | None, gs: Mapping[str, Tensor]) -> Tensor:
        """The super-nodes' features [g_{h(i)}, f_i].  # shape: (B?, N, d)"""
        g = gs.get(self.group)
        parts = [] if g is None else [g.index_select(-2, self.matching.factor)]
        parts += [] if f is None else [f]
        lead = max((p.shape[:-2] for p in parts), key=len)  # features shared by all samples may lack B
        return torch.cat([p.expand(*lead, *p.shape[-2:]) for p in parts], -1)

    def edge_features(self, edges: Mapping[str, EdgeFeatures] | None = None) -> Tensor:
        """[t_{h(i)i'}, t_{h(i')i}, missing, missing] for each i' in N(i); a missing t is 0.  # shape: (B?, E', d)"""
        matrix = self.direction.edge_messages.matrix
        assert isinstance(matrix, StackedMatrix)
        features = (edges or {}).get(self.group)
        blocks = []
        for q, index in zip((matrix.vf, matrix.fv), self._edge_index, strict=True):
            t = _as_features(features, q, self._incidence)
            zero = t.new_zeros(*t.shape[:-2], 1, t.shape[-1])
            blocks.append(torch.cat([t, zero], -2).index_select(-2, index % (t.shape[-2] + 1)))
        missing = (self._edge_index < 0).T.to(blocks[0].dtype)
        return torch.cat([*blocks, missing.expand(*blocks[0].shape[:-2], -1, -1)], -1)

    def split(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Split super-node features into variable and factor features."""
        g = x[..., : self._split].index_select(-2, self.matching.variable)
        return x[..., self._split :], {self.group: g}

    def run(
        self, f: Tensor | None, gs: Mapping[str, Tensor], edges: Mapping[str, EdgeFeatures] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output of the FGNN layer for these features."""
        return self.split(self(self.neighbours, self.stack(f, gs), self.edge_features(edges)))


def to_mpnn(layer: FGNNLayer, graph: FactorGraph, *, gated: bool = True) -> MatchedMPNN:
    """An FGNN layer as an MPNN layer, for a graph whose factors and variables match perfectly.

    Args:
        layer: One group of factors, parallel schedule (both blocks of eq. (stack_mp_nn) read the old features), no
            normalisation, and any aggregation but the mean, which would count missing edges.
        graph: Factors and variables must have a perfect matching h, with i in s(h(i)).
        gated: Whether gates close the missing edges, so that the result equals the FGNN layer's. Without gates,
            super-nodes of unrelated factors and variables exchange messages with edge features 0, which the paper
            leaves to training. Both agree if :math:`i' \\in s(h(i))` is symmetric.

    Raises:
        ValueError: The graph or the layer has no MPNN form.
    """
    messages, outputs = _halves(layer, graph)
    (group,) = graph.groups
    matching, incidence = graph.perfect_matching(group), graph.incidence(group)
    neighbours, edge_index = super_edges(incidence, matching)
    q = [half.matrix for half in messages]
    aggregation = layer.factor_to_variable.aggregation
    mpnn = MatchedMPNN.from_parts(
        stack_messages(*(half.message for half in messages)),
        StackedMatrix(*q, gated=gated, multiply=aggregation.kind == "sum"),
        aggregate=aggregation,
        bias=any(output.bias is not None for output in outputs),
        activation=outputs[0].activation,
    )
    assert isinstance(mpnn, MatchedMPNN)
    if mpnn.direction.output.bias is not None:
        biases = [q[0].weight.new_zeros(o.width) if o.bias is None else o.bias.detach() for o in outputs]
        mpnn.direction.output.bias = nn.Parameter(torch.cat(biases))
    mpnn.neighbours, mpnn.matching, mpnn.group = neighbours, matching, group
    mpnn._incidence, mpnn._edge_index, mpnn._split = incidence, edge_index, q[0].rows
    return mpnn


def _halves(layer: FGNNLayer, graph: FactorGraph) -> tuple[tuple[EdgeMessages, EdgeMessages], tuple[Output, Output]]:
    """The messages and outputs of both directions, VF and FV, if the layer has an MPNN form."""
    names = list(layer.factor_to_variable.edge_messages)
    if len(names) != 1 or list(graph.groups) != names:
        raise ValueError(f"Expected one group of factors, the layer's (got {names} and {list(graph.groups)})")
    if layer.schedule != "parallel":
        raise ValueError(f"Expected the parallel schedule, which reads old features only (got {layer.schedule})")
    if layer.variables_only:
        raise ValueError("Expected a layer that returns factor features too (got one with variables only)")
    to_factor, to_variable = layer.variable_to_factor[names[0]], layer.factor_to_variable
    assert isinstance(to_factor, VariableToFactor)
    if to_factor.aggregation != to_variable.aggregation or to_variable.aggregation.kind == "mean":
        raise ValueError(
            f"Expected max, softmax or sum in both directions (got {to_factor.aggregation}, {to_variable.aggregation})"
        )
    outputs = (to_factor.output, to_variable.output)
    if any(output.norm is not None for output in outputs):
        raise ValueError("Expected a layer without normalisation, which would mix factors and variables (got one)")
    if outputs[0].activation != outputs[1].activation:
        raise ValueError("Expected the same activation after both directions (got different ones)")
    backward = to_variable.edge_messages[names[0]]
    assert isinstance(backward, EdgeMessages)
    messages = (to_factor.edge_messages, backward)
    kinds = [(m.message.activation, m.message.final_activation, len(m.message.tail)) for m in messages]
    if kinds[0] != kinds[1]:
        raise ValueError(f"Expected M of the same depth and activation in both directions (got {kinds[0]}, {kinds[1]})")
    return messages, outputs


def super_edges(incidence: Incidence, matching: Matching) -> tuple[FactorGroup, Tensor]:
    """N(i) for all i, and for each i' in it the edges (h(i), i') and (h(i'), i) of the factor graph, -1 if missing."""
    n, count = incidence.num_variables, incidence.num_edges
    owner = matching.variable[incidence.factor]  # shape: (E,), the variable whose factor the edge belongs to
    keys = torch.cat([owner * n + incidence.variable, incidence.variable * n + owner])
    pairs, inverse = torch.unique(keys, return_inverse=True)
    edge_index = keys.new_full((2, len(pairs)), -1)
    edges = torch.arange(count, device=keys.device)
    edge_index[0, inverse[:count]] = edges
    edge_index[1, inverse[count:]] = edges
    sizes = torch.bincount(pairs // n, minlength=n)
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return FactorGroup.ragged(pairs % n, offsets), edge_index


def _as_features(t: EdgeFeatures | None, q: EdgeMatrix, incidence: Incidence) -> Tensor:
    """Edge features with one row per edge; types as one-hot vectors.  # shape: (B?, E, edge_in)"""
    if isinstance(q, TableMatrix):
        types = edge_types(t, incidence, q.terms)
        index = types if isinstance(types, Tensor) else types.index
        if isinstance(types, Tensor) and types.dim() == 1:  # one type per position
            index = types[incidence.positions.index]
        return nn.functional.one_hot(index, q.terms).to(q.weight.dtype)
    if not isinstance(t, Tensor):
        raise ValueError(f"Expected edge features of length {q.edge_in} (got {type(t).__name__})")  # noqa: TRY004
    flat, by_position = flatten_edges(t, incidence, q.edge_in)
    return flat[incidence.positions.index] if by_position else flat
