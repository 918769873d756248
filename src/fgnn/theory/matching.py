"""The perfect-matching transformation: an FGNN layer as an MPNN layer on super-nodes, eq. (stack_mp_nn)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fgnn.graph import FactorGraph, FactorGroup, Incidence, Matching
from fgnn.nn import Aggregation, EdgeMatrix, EdgeMessages, FGNNLayer, MPNNLayer, TableMatrix, VariableToFactor
from fgnn.nn.direction import Output
from fgnn.nn.edge_features import EdgeFeatures, edge_types, flatten_edges
from fgnn.theory.stacked import StackedMatrix, stack_messages


class MatchedMPNN(MPNNLayer):
    r"""An `MPNNLayer` on the super-nodes :math:`[g_{h(i)}, f_i]` that computes what an FGNN layer does.

    Each super-node i listens to :math:`\mathcal{N}(i) = \{i' : i' \in s(h(i)) \lor i \in s(h(i'))\}`. Its factor needs
    :math:`\mathcal{M}([g_{h(i)}, f_{i'}]|\Theta_{VF})` and the edge :math:`t_{h(i)i'}`; its variable needs
    :math:`\mathcal{M}([g_{h(i')}, f_i]|\Theta_{FV})` and the edge :math:`t_{h(i')i}`. (Printed, both blocks read
    :math:`t_{h(i')i'}` and the features of i' alone.)

    It is called like any `MPNNLayer`, with ``neighbours`` and what `stack` and `edge_features` make; `run` does it all.
    """

    neighbours: FactorGroup
    matching: Matching
    group: str
    _incidence: Incidence
    _places: Tensor  # shape: (2, E'), the factor graph's edge for each block of an edge, -1 where it is missing
    _split: int

    def stack(self, f: Tensor | None, gs: Mapping[str, Tensor]) -> Tensor:
        """The super-nodes' features [g_{h(i)}, f_i].  # shape: (B?, N, d)"""
        g = gs.get(self.group)
        parts = [] if g is None else [g.index_select(-2, self.matching.factor)]
        parts += [] if f is None else [f]
        lead = max((p.shape[:-2] for p in parts), key=len)  # what all samples share may come without B
        return torch.cat([p.expand(*lead, *p.shape[-2:]) for p in parts], -1)

    def edge_features(self, edges: Mapping[str, EdgeFeatures] | None = None) -> Tensor:
        """[t_{h(i)i'}, t_{h(i')i}, missing, missing] for each i' in N(i); a missing t is 0.  # shape: (B?, E', d)"""
        matrix = self.direction.edge_messages.matrix
        assert isinstance(matrix, StackedMatrix)
        given = (edges or {}).get(self.group)
        blocks = []
        for q, place in zip((matrix.vf, matrix.fv), self._places, strict=True):
            t = _as_features(given, q, self._incidence)
            none = t.new_zeros(*t.shape[:-2], 1, t.shape[-1])
            blocks.append(torch.cat([t, none], -2).index_select(-2, place % (t.shape[-2] + 1)))
        missing = (self._places < 0).T.to(blocks[0].dtype)
        return torch.cat([*blocks, missing.expand(*blocks[0].shape[:-2], -1, -1)], -1)

    def split(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Variables' and factors' features from those of the super-nodes."""
        g = x[..., : self._split].index_select(-2, self.matching.variable)
        return x[..., self._split :], {self.group: g}

    def run(
        self, f: Tensor | None, gs: Mapping[str, Tensor], edges: Mapping[str, EdgeFeatures] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the FGNN layer returns for these features."""
        return self.split(self(self.neighbours, self.stack(f, gs), self.edge_features(edges)))


def to_mpnn(layer: FGNNLayer, graph: FactorGraph, *, gated: bool = True) -> MatchedMPNN:
    """An FGNN layer as an MPNN layer, for a graph whose factors and variables match perfectly.

    Args:
        layer: With one group of factors and the parallel schedule, since both blocks of eq. (stack_mp_nn) read the
            old features; without normalisation, and any aggregation but the mean (which would count missing edges).
        graph: Every variable must have a factor of its own that contains it.
        gated: With gates the result is the layer's own; without, also the super-nodes of unrelated factors and
            variables exchange messages, with edge features 0, as the paper suggests to let training use them. Both are
            the same where :math:`i' \\in s(h(i))` is symmetric.

    Raises:
        ValueError: The reason why the graph or the layer does not fit.
    """
    halves = _read(layer, graph)
    matching = graph.perfect_matching(halves.group)
    incidence = graph.incidence(halves.group)
    neighbours, places = _super_edges(incidence, matching)
    q = [half.matrix for half in halves.messages]
    outputs = halves.outputs
    made = MatchedMPNN.from_parts(
        stack_messages(*(half.message for half in halves.messages)),
        StackedMatrix(*q, gated=gated, multiply=halves.aggregation.kind == "sum"),
        aggregate=halves.aggregation,
        bias=any(output.bias is not None for output in outputs),
        activation=outputs[0].activation,
    )
    assert isinstance(made, MatchedMPNN)
    if made.direction.output.bias is not None:
        biases = [q[0].weight.new_zeros(o.width) if o.bias is None else o.bias.detach() for o in outputs]
        made.direction.output.bias = nn.Parameter(torch.cat(biases))
    made.neighbours, made.matching, made.group = neighbours, matching, halves.group
    made._incidence, made._places, made._split = incidence, places, q[0].rows
    return made


@dataclass(frozen=True, eq=False)
class _Halves:
    """A layer's two directions, VF and FV."""

    group: str
    messages: tuple[EdgeMessages, EdgeMessages]
    outputs: tuple[Output, Output]
    aggregation: Aggregation


def _read(layer: FGNNLayer, graph: FactorGraph) -> _Halves:
    """The layer's directions, or the reason why it has no MPNN form."""
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
    there = to_variable.edge_messages[names[0]]
    assert isinstance(there, EdgeMessages)
    messages = (to_factor.edge_messages, there)
    kinds = [(m.message.activation, m.message.final_activation, len(m.message.tail)) for m in messages]
    if kinds[0] != kinds[1]:
        raise ValueError(f"Expected M of the same depth and activation in both directions (got {kinds[0]}, {kinds[1]})")
    return _Halves(names[0], messages, outputs, to_variable.aggregation)


def _super_edges(incidence: Incidence, matching: Matching) -> tuple[FactorGroup, Tensor]:
    """N(i) for all i, and for each i' in it the edges (h(i), i') and (h(i'), i) of the factor graph, -1 for none."""
    n, count = incidence.num_variables, incidence.num_edges
    owner = matching.variable[incidence.factor]  # shape: (E,), the variable whose factor the edge belongs to
    keys = torch.cat([owner * n + incidence.variable, incidence.variable * n + owner])
    pairs, where = torch.unique(keys, return_inverse=True)
    places = keys.new_full((2, len(pairs)), -1)
    each = torch.arange(count, device=keys.device)
    places[0, where[:count]] = each
    places[1, where[count:]] = each
    sizes = torch.bincount(pairs // n, minlength=n)
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return FactorGroup.ragged(pairs % n, offsets), places


def _as_features(t: EdgeFeatures | None, q: EdgeMatrix, incidence: Incidence) -> Tensor:
    """Edge features, types as one-hot vectors, with a row for each edge.  # shape: (B?, E, edge_in)"""
    if isinstance(q, TableMatrix):
        found = edge_types(t, incidence, q.terms)
        index = found if isinstance(found, Tensor) else found.index
        if isinstance(found, Tensor) and found.dim() == 1:  # by place
            index = found[incidence.positions.index]
        return nn.functional.one_hot(index, q.terms).to(q.weight.dtype)
    if not isinstance(t, Tensor):
        raise ValueError(f"Expected edge features of length {q.edge_in} (got {type(t).__name__})")  # noqa: TRY004
    flat, by_place = flatten_edges(t, incidence, q.edge_in)
    return flat[incidence.positions.index] if by_place else flat
